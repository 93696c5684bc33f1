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
  if old.mp ~= Q.c.mp and Q.c.fifo then
    for _, g in ipairs(call('ZRANGE', p .. 'gs', 0, -1)) do offer(Q, g) end
  elseif old.mp ~= Q.c.mp then
    -- Sorted anew by what the messages say.
    local all = {}
    for _, seq in ipairs(by_number(call('HKEYS', p .. 'x'))) do
      if call('HEXISTS', p .. 'o', seq) == 0 and not call('ZSCORE', p .. 'd', seq) then
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
  if Q.c.fifo and old.delay ~= Q.c.delay then
    -- What waits for the delay of its queue waits for the new one.
    for _, seq in ipairs(by_number(call('ZRANGEBYSCORE', p .. 'd', '(' .. S(Q.now), '+inf'))) do
      local x = extra_of(Q, seq)
      local rec, sent = record_of(Q, seq, x)
      if rec and x and (x.c or 0) == 0 and not x.e and x.d == sent + old.delay then
        leave_line(Q, seq, x, rec)
        stand_again(Q, seq, x, sent, rec, sent + Q.c.delay)
      end
    end
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
  return {Q.lb > 0 and 1 or 0, Q.now, 0, damage.named(Q)}
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
  if call('EXISTS', p .. 'ob') == 1 then return failure('OUTBOX') end  -- first what is on its way to others
  batches.forget(Q)
  clear(Q, false)
  call('DEL', Q.k, p .. 'oc', p .. 'm', p .. 'h', p .. 'n', p .. 'k', p .. 'kz', p .. 'in', p .. 'jb', p .. 'jz')
  -- A stub, so that one who knows the queue from before does not make it again.
  call('HSET', Q.k, 'gone', 1)
  call('EXPIRE', Q.k, 604800)
  return {0, Q.now, n}
end

-- Before which millisecond everything lies that was dropped of the events, while nobody kept count of it: what is
-- too old or too many goes.
local function dropped_before(Q)
  local events = Q.p .. 'h'
  if call('EXISTS', events) == 0 then return 0 end
  local facts, told = {}, call('XINFO', 'STREAM', events)
  for i = 1, #told, 2 do facts[told[i]] = told[i + 1] end
  if facts['entries-added'] == facts['length'] then return 0 end
  local first = call('XRANGE', events, '-', '+', 'COUNT', 1)[1]
  local first_ms = first and seq_of(first[1]) or seq_of(facts['last-generated-id']) + 1
  return facts['length'] > Q.c.hmax * 2.7 and first_ms or min(first_ms, Q.now - Q.c.hist)
end

-- What is kept for readers, until they are given up. now, from which millisecond on, until when: 1 if something
-- was dropped, and there may be more of it
local keep_history = on_queue(function(Q, args)
  local till, before = tonumber(args[3]), Q.tr
  if till > Q.now and not is_held(Q) then Q.hl = max(Q.hl, dropped_before(Q)) end
  Q.hf, Q.hu = tonumber(args[2]), till
  trim(Q, true)
  trim_events(Q, true)
  return Q.tr > before and 1 or 0
end)

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

-- What a client knows of a store that was emptied, as far as nobody else has put it there: the name of the store.
-- The name that it gets if it has none, where its blocks begin, then name, 1 for a queue, data of each document;
-- a queue gets a new number, which comes in front of its data
local function put_documents(keys, args)
  local docs = keys[1]
  local versions, counters = docs .. 'v', sub(docs, 1, -5) .. 'counters'
  local channel = sub(docs, 1, find(docs, ':{', 1, true)) .. 'topology'
  call('HSETNX', counters, 'id_prefix', args[1])
  call('HSETNX', counters, 'blocks', args[2])
  for i = 3, #args, 3 do
    local name, data = args[i], args[i + 2]
    if call('HEXISTS', versions, name) == 0 then
      if args[i + 1] == '1' then
        data = '{"number": ' .. S(call('HINCRBY', counters, 'queues', 1)) .. ', ' .. data
      end
      call('HSET', docs, name, data)
      call('HSET', versions, name, call('HINCRBY', versions, '', 1))
      call('PUBLISH', channel, name)
    end
  end
  return call('HGET', counters, 'id_prefix')
end

-- One field of a hash that clients share, if it still says what was changed: 1, or 0. now, field, before, after;
-- '' is none
local function put_field(keys, args)
  local found = call('HGET', keys[1], args[2]) or ''
  -- What it says already was written by this very call, whose answer was lost; again, so that WAIT waits for it.
  if found ~= args[3] and found ~= args[4] then return 0 end
  if args[4] == '' then
    call('HDEL', keys[1], args[2])
  else
    call('HSET', keys[1], args[2], args[4])
  end
  return 1
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
register('ack_late', overdue.ack, GOES_ON)
register('back', back, GOES_ON)
register('reject', reject, GOES_ON)
-- What was lent and cannot be read: nobody saw it, and it is delivered no more. now, token, then seq, number
register('set_aside', once(function(Q, args)
  return each_lease(Q, args, 3, function(seq, lease)
    local x = extra_of(Q, seq)
    local rec, sent = record_of(Q, seq, x)
    end_lease(Q, seq, lease)
    count(Q, 'released')
    damage.set_aside(Q, seq, x, sent, rec)
    settle(Q, seq, x or {})
    return 'removed'
  end)
end), GOES_ON)
register('forsake', forsake, GOES_ON)
register('extend', extend, GOES_ON)
register('extend_late', overdue.extend, GOES_ON)
register('hold', hold, GOES_ON)
register('limbo', limbo, GOES_ON)
register('done', done, GOES_ON)
register('revive', revive, GOES_ON)
register('arrive', arrive, ADDS)
register('would', would, GOES_ON)
register('fan_out', fan_out, ADDS)
register('browse', browse.first, GOES_ON)
register('browse_delayed', browse.delayed, GOES_ON)
register('in_flight', browse.in_flight, GOES_ON)
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
register('put_documents', put_documents, ADDS)
register('form_batch', batches.form, GOES_ON)
register('open_batches', batches.open, GOES_ON)
register('known_batches', batches.numbers, GOES_ON)
register('tidy_batches', batches.tidy, GOES_ON)
register('read_batch', batches.rows, GOES_ON)
register('extend_batch', batches.extend, GOES_ON)
register('ack_batches', batches.ack, GOES_ON)
register('give_back_batches', batches.give_back, GOES_ON)
register('put_field', put_field, ADDS)
register('keep_history', keep_history, GOES_ON)
