-- The queue itself, what all queues share, and the list of functions.

-- -- the queue itself -----------------------------------------------------------------------------

-- now, settings, first and last sequence of its block, name; again with other settings
local function configure(keys, args)
  local k = keys[1]
  local name = call('HGET', k, 'name')
  if name and name ~= args[5] then return failure('TAKEN') end
  if call('EXISTS', k) == 0 then
    local before = S(tonumber(args[3]) - 1)
    call('HSET', k, 'name', args[5], 'c', args[2], 'seq', before, 'last', args[4], 'cur', before, 'tr', before)
    return {0, 0, 1}
  end
  local text = call('HGET', k, 'c')
  if not text then return failure('GONE') end
  local old = settings_of(text)
  if old.v > settings_of(args[2]).v then return {0, 0, 0} end  -- somebody changed it after this
  call('HSET', k, 'c', args[2])
  local Q = open(keys, args)
  local p = Q.p
  if old.mp ~= Q.c.mp then
    -- Sorted anew by what the messages say.
    local all = {}
    for _, seq in ipairs(by_number(call('HKEYS', p .. 'x'))) do
      if call('HEXISTS', p .. 'o', seq) == 0 and (Q.c.fifo or not call('ZSCORE', p .. 'd', seq)) then
        local x = extra_of(Q, seq)
        local now_rank = Q.c
        Q.c = old
        step_out(Q, seq, x)
        Q.c = now_rank
        all[#all + 1] = {seq, x}
      end
    end
    for _, each in ipairs(all) do stand(Q, each[1], each[2]) end
  end
  if old.ret ~= Q.c.ret then
    Q.ra = Q.now
    deadline(Q, Q.now)
  end
  Q.wakes = true
  advance(Q)
  overflow(Q)
  if Q.c.hist == 0 and old.hist > 0 then
    call('DEL', p .. 'h')
    trim(Q, true)
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, 0}
end

-- More sequences, if the last block is used up. now, first, last, how many are needed
local function block(keys, args)
  local k = keys[1]
  local f = call('HMGET', k, 'seq', 'last')
  if f[1] and tonumber(f[1]) + tonumber(args[4]) > tonumber(f[2]) then
    -- A store that lost its counters must not give out a block again.
    if tonumber(args[2]) <= tonumber(f[1]) then return tonumber(f[1]) end
    call('HSET', k, 'seq', S(tonumber(args[2]) - 1), 'last', args[3])
    return 1
  end
  return 0
end

-- now, only if empty, only if nobody holds anything: how many went with it
-- Not saved as the others: nothing is left of it but a stub.
local function drop(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local lent = lent_count(Q)
  local n = waiting_count(Q) + lent
  if args[2] == '1' and n > 0 then return failure('INUSE', 'it holds ' .. n .. ' messages') end
  if args[3] == '1' and (lent > 0 or Q.w > Q.now) then return failure('INUSE', 'it has consumers') end
  local p = Q.p
  if call('EXISTS', p .. 'ob') == 1 then return failure('LIMBO') end  -- first what is on its way to others
  clear(Q, false)
  call('DEL', Q.k, p .. 'oc', p .. 'm', p .. 'h', p .. 'n', p .. 'k', p .. 'kz', p .. 'in', p .. 'jb', p .. 'jz')
  -- A stub, so that one who knows the queue from before does not make it again.
  call('HSET', Q.k, 'gone', 1)
  call('EXPIRE', Q.k, 604800)
  return {0, Q.now, n}
end

-- -- what all queues share ------------------------------------------------------------------------

-- A document, if it is still of the version that was changed: its new version, or 0. name, version, data
local function put_document(keys, args)
  local docs = keys[1]
  local versions = docs .. 'v'
  if tonumber(call('HGET', versions, args[1]) or 0) ~= tonumber(args[2]) then return 0 end
  -- Versions are never used again, not even by a document of the same name made anew.
  local version = call('HINCRBY', versions, '', 1)
  if args[3] == '' then
    call('HDEL', docs, args[1])
    call('HDEL', versions, args[1])
  else
    call('HSET', docs, args[1], args[3])
    call('HSET', versions, args[1], version)
  end
  call('PUBLISH', sub(docs, 1, find(docs, ':{', 1, true)) .. 'topology', args[1])
  return version
end

local function register(name, verb, flags)
  local function run(keys, args)
    if not call then prepare() end
    return verb(keys, args)
  end
  redis.register_function{function_name = PREFIX .. name, callback = run, flags = flags}
end

-- A Redis without memory refuses what adds to it and lets the rest go on.
local ADDS, GOES_ON = {}, {'allow-oom'}
register('publish', publish, ADDS)
register('receive', receive, GOES_ON)
register('ack', ack, GOES_ON)
register('ack_late', ack_late, GOES_ON)
register('back', back, GOES_ON)
register('reject', reject, GOES_ON)
register('forsake', forsake, GOES_ON)
register('extend', extend, GOES_ON)
register('hold', hold, GOES_ON)
register('limbo', limbo, GOES_ON)
register('done', done, GOES_ON)
register('revive', revive, GOES_ON)
register('arrive', arrive, ADDS)
register('would', would, GOES_ON)
register('fan_out', fan_out, ADDS)
register('browse', browse, GOES_ON)
register('survey', survey, GOES_ON)
register('rear', rear, GOES_ON)
register('look', look, GOES_ON)
register('seqs_of', seqs_of, GOES_ON)
register('standing', standing, GOES_ON)
register('stats', stats, GOES_ON)
register('tick', tick, GOES_ON)
register('cancel', cancel, GOES_ON)
register('edit', edit, ADDS)
register('reschedule', reschedule, GOES_ON)
register('send_on', send_on, GOES_ON)
register('purge', purge, GOES_ON)
register('configure', configure, GOES_ON)
register('block', block, GOES_ON)
register('drop', drop, GOES_ON)
register('put_document', put_document, ADDS)
