-- Settings and deletion of a queue, documents of the store, and the list of functions.

-- -- events of the store -------------------------------------------------------------------------------

-- The stream `events`, in the slot of the documents: queues created, changed and deleted, and what clients add.
-- An entry: kind, then its parts.
function readers.add(docs, now, ...)
  local stream = sub(docs, 1, -5) .. 'events'
  local last = call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  -- Within a millisecond the deletion of a queue comes last.
  local least = last and seq_of(last[1]) + (sub(last[2][2], 1, 1) == 'D' and 1 or 0) or 0
  now = max((now_of(now)), least)
  call('XADD', stream, 'MAXLEN', '~', readers.STORE_EVENTS, S(now) .. '-*', 'e', concat({...}, '\31'))
  call('XTRIM', stream, 'MINID', '~', S(now - readers.STORE_MS) .. '-0')
  call('PUBLISH', sub(docs, 1, find(docs, ':{', 1, true)) .. 'events', S(now))
end

-- The change of a queue's document; `data` is '' if it was deleted, `old` false if there was none.
function readers.add_queue(docs, now, name, old, data)
  if sub(name, 1, 6) ~= 'queue/' then return end
  if data == '' then
    if old then readers.add(docs, now, 'D', sub(name, 7), match(old, '"number": (%d+)') or '0') end
  else
    readers.add(docs, now, old and 'C' or 'N', sub(name, 7), data)
  end
end

-- The last id in a stream of a queue, '0-0' if it is empty.
function readers.last(stream)
  local found = call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  return found and found[1] or '0-0'
end

-- Announce events, and keep those of queues without a history, for some time. now, how long
function readers.watch(keys, args)
  local k = keys[1]
  local f = call('HMGET', k, 'c', 'ew')
  if not f[1] then return 0 end
  local now = now_of(args[1])
  if (tonumber(f[2]) or 0) <= now then call('HSET', k, 'eb', S(now)) end  -- watched from now on
  call('HSET', k, 'ew', S(now + tonumber(args[2])))
  return 1
end

-- -- the queue -----------------------------------------------------------------------------

-- Create a queue or change its settings. now, settings, first and last sequence of its block, name, until when its
-- events are watched if it is new
local function configure(keys, args)
  local k = keys[1]
  local name = call('HGET', k, 'name')
  if name and name ~= args[5] then return failure('TAKEN') end
  if call('EXISTS', k) == 0 then
    local before = S(tonumber(args[3]) - 1)
    call('HSET', k, 'name', args[5], 'c', args[2], 'seq', before, 'last', args[4], 'cur', before, 'tr', before)
    if tonumber(args[6]) > 0 then call('HSET', k, 'ew', args[6], 'eb', 0) end  -- from its beginning on
    return {0, 0, 1}
  end
  local text = call('HGET', k, 'c')
  if not text then return failure('GONE') end
  local old = settings_of(text)
  if old.v > settings_of(args[2]).v then return {0, 0, 0} end  -- a later change was applied first
  call('HSET', k, 'c', args[2])
  local Q = open(keys, args)
  local p = Q.p
  if old.mp ~= Q.c.mp and Q.c.fifo then
    for _, g in ipairs(call('ZRANGE', p .. 'gs', 0, -1)) do update_ticket(Q, g) end
  elseif old.mp ~= Q.c.mp then
    -- Sort the messages by their priorities again.
    local all = {}
    for _, seq in ipairs(by_number(call('HKEYS', p .. 'x'))) do
      if call('HEXISTS', p .. 'o', seq) == 0 and not call('ZSCORE', p .. 'd', seq) then
        local x = extra_of(Q, seq)
        local now_rank = Q.c
        Q.c = old
        leave_ready_list(Q, seq, x)
        Q.c = now_rank
        all[#all + 1] = {seq, x}
      end
    end
    for _, each in ipairs(all) do enqueue(Q, each[1], each[2]) end
  end
  if old.lk ~= Q.c.lk then limits.rebuild(Q) end
  if Q.c.fifo and old.delay ~= Q.c.delay then
    -- Messages that wait for the old delay of the queue wait for the new one.
    for _, seq in ipairs(by_number(call('ZRANGEBYSCORE', p .. 'd', '(' .. S(Q.now), '+inf'))) do
      local x = extra_of(Q, seq)
      local rec, sent = record_of(Q, seq, x)
      if rec and x and (x.c or 0) == 0 and not x.e and x.d == sent + old.delay then
        leave_queue(Q, seq, x, rec)
        requeue(Q, seq, x, sent, rec, sent + Q.c.delay)
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
  elseif Q.c.hist > 0 and old.hist == 0 then
    call('PERSIST', p .. 'h')
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, 0, damage.named(Q)}
end

-- A new block of sequences, if the last one is used up. now, first, last, how many are needed
local function block(keys, args)
  local k = keys[1]
  local f = call('HMGET', k, 'seq', 'last')
  if f[1] and tonumber(f[1]) + tonumber(args[4]) > tonumber(f[2]) then
    -- A store that lost its counters must not assign a block twice.
    if tonumber(args[2]) <= tonumber(f[1]) then return tonumber(f[1]) end
    call('HSET', k, 'seq', S(tonumber(args[2]) - 1), 'last', args[3])
    return 1
  end
  return 0
end

-- Delete a queue: the number of its messages, and its counters. now, 1 only if empty, 1 only if it has no consumers
-- Without `save`: only a stub is left.
local function drop(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local in_flight = in_flight_count(Q)
  local n = waiting_count(Q) + in_flight
  if args[2] == '1' and n > 0 then return failure('INUSE', 'it holds ' .. n .. ' messages') end
  if args[3] == '1' and (in_flight > 0 or Q.w > Q.now) then return failure('INUSE', 'it has consumers') end
  local p = Q.p
  if call('EXISTS', p .. 'ob') == 1 then return failure('OUTBOX') end  -- the outbox must be drained first
  batches.forget(Q)
  local last_message, last_event, is_watched = readers.last(p .. 'm'), readers.last(p .. 'h'), Q.ew > Q.now
  if is_watched then
    -- Readers of events that are a little behind still find what happened.
    call('PEXPIRE', p .. 'm', readers.KEPT_MS)
    call('PEXPIRE', p .. 'h', readers.KEPT_MS)
  end
  local counters = call('HGETALL', p .. 'n')
  clear(Q, false)
  if not is_watched then call('DEL', p .. 'm', p .. 'h') end
  call('DEL', Q.k, p .. 'oc', p .. 'n', p .. 'k', p .. 'kz', p .. 'in', p .. 'jb', p .. 'jz', p .. 'sc')
  call('DEL', p .. 'kf', p .. 'kb', p .. 'kt', p .. 'kp')
  -- A stub, so that a client with an old cache does not create the queue again. For readers of events: the ids
  -- of its last entries, until when they are kept, whether it had a history.
  call('HSET', Q.k, 'gone', 1, 'lm', last_message, 'lh', last_event,
    'ek', is_watched and S(Q.now + readers.KEPT_MS) or '0', 'eh', Q.c.hist > 0 and 1 or 0)
  call('EXPIRE', Q.k, 604800)
  return {0, Q.now, {n, counters}}
end

-- The millisecond before which all dropped events lie, while no cursor held them: they are trimmed by age and number.
local function dropped_before(Q)
  local events = Q.p .. 'h'
  if call('EXISTS', events) == 0 then return 0 end
  local facts, info = {}, call('XINFO', 'STREAM', events)
  for i = 1, #info, 2 do facts[info[i]] = info[i + 1] end
  if facts['entries-added'] == facts['length'] then return 0 end
  local first = call('XRANGE', events, '-', '+', 'COUNT', 1)[1]
  local first_ms = first and seq_of(first[1]) or seq_of(facts['last-generated-id']) + 1
  return facts['length'] > Q.c.hmax * 2.7 and first_ms or min(first_ms, Q.now - Q.c.hist)
end

-- Hold the history for cursors. now, from which millisecond on, until when: 1 if something was dropped, and more may
-- follow
local keep_history = on_queue(function(Q, args)
  local till, before = tonumber(args[3]), Q.tr
  if till > Q.now and not is_held(Q) then Q.hl = max(Q.hl, dropped_before(Q)) end
  Q.hf, Q.hu = tonumber(args[2]), till
  trim(Q, true)
  trim_events(Q, true)
  return Q.tr > before and 1 or 0
end)

-- -- documents of the store ------------------------------------------------------------------------

-- Replace a document if its version is still the given one: the new version, or 0. name, version, data, now
local function put_document(keys, args)
  local docs = keys[1]
  local versions = docs .. 'v'
  if tonumber(call('HGET', versions, args[1]) or 0) ~= tonumber(args[2]) then return 0 end
  readers.add_queue(docs, args[4], args[1], call('HGET', docs, args[1]), args[3])
  -- Versions are never reused, not even by a new document of the same name.
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

-- Restore the documents of a store that was emptied, unless another client did: the name of the store. Arguments: its
-- name if it has none, where its blocks begin, now, then name, 1 for a queue, data of each document; a queue gets a
-- new number, in front of its data
local function put_documents(keys, args)
  local docs = keys[1]
  local versions, counters = docs .. 'v', sub(docs, 1, -5) .. 'counters'
  local channel = sub(docs, 1, find(docs, ':{', 1, true)) .. 'topology'
  call('HSETNX', counters, 'id_prefix', args[1])
  call('HSETNX', counters, 'blocks', args[2])
  for i = 4, #args, 3 do
    local name, data = args[i], args[i + 2]
    if call('HEXISTS', versions, name) == 0 then
      if args[i + 1] == '1' then
        data = '{"number": ' .. S(call('HINCRBY', counters, 'queues', 1)) .. ', ' .. data
      end
      readers.add_queue(docs, args[3], name, false, data)
      call('HSET', docs, name, data)
      call('HSET', versions, name, call('HINCRBY', versions, '', 1))
      call('PUBLISH', channel, name)
    end
  end
  return call('HGET', counters, 'id_prefix')
end

-- Compare and set one field of a shared hash: 1, or 0. now, field, before, after; '' means absent
local function put_field(keys, args)
  local found = call('HGET', keys[1], args[2]) or ''
  -- An equal value was written by an earlier try of this call, whose answer was lost; write it again, for WAIT.
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

-- A Redis without free memory refuses functions that add data and allows the others.
local ADDS, ALLOWED_WHEN_FULL = {}, {'allow-oom'}
register('publish', publish, ADDS)
register('receive', receive, ALLOWED_WHEN_FULL)
register('ack', ack, ALLOWED_WHEN_FULL)
register('ack_late', late_receipts.ack, ALLOWED_WHEN_FULL)
register('back', back, ALLOWED_WHEN_FULL)
register('reject', reject, ALLOWED_WHEN_FULL)
-- Set aside deliveries that the client could not decode. now, token, then seq, number
register('set_aside', once(function(Q, args)
  return each_lease(Q, args, 3, function(seq, lease)
    local x = extra_of(Q, seq)
    local rec, sent = record_of(Q, seq, x)
    end_lease(Q, seq, lease)
    count(Q, 'released')
    damage.set_aside(Q, seq, x, sent, rec)
    end_delivery(Q, seq, x or {})
    return 'removed'
  end)
end), ALLOWED_WHEN_FULL)
register('release_unanswered', release_unanswered, ALLOWED_WHEN_FULL)
register('extend', extend, ALLOWED_WHEN_FULL)
register('extend_late', late_receipts.extend, ALLOWED_WHEN_FULL)
register('hold', hold, ALLOWED_WHEN_FULL)
register('claim_outbox', claim_outbox, ALLOWED_WHEN_FULL)
register('done', done, ALLOWED_WHEN_FULL)
register('return_from_outbox', return_from_outbox, ALLOWED_WHEN_FULL)
register('arrive', arrive, ADDS)
register('check_publish', check_publish, ALLOWED_WHEN_FULL)
register('fan_out', fan_out, ADDS)
register('browse', browse.first, ALLOWED_WHEN_FULL)
register('browse_delayed', browse.delayed, ALLOWED_WHEN_FULL)
register('in_flight', browse.in_flight, ALLOWED_WHEN_FULL)
register('ready_seqs', browse.ready_seqs, ALLOWED_WHEN_FULL)
register('scan_ready', scan_ready, ALLOWED_WHEN_FULL)
register('rear', rear, ALLOWED_WHEN_FULL)
register('look', look, ALLOWED_WHEN_FULL)
register('seqs_of', seqs_of, ALLOWED_WHEN_FULL)
register('standing', standing, ALLOWED_WHEN_FULL)
register('stats', stats, ALLOWED_WHEN_FULL)
register('tick', tick, ALLOWED_WHEN_FULL)
register('cancel', cancel, ALLOWED_WHEN_FULL)
register('edit', edit, ADDS)
register('reschedule', reschedule, ALLOWED_WHEN_FULL)
register('move_out', move_out, ALLOWED_WHEN_FULL)
register('purge', purge, ALLOWED_WHEN_FULL)
register('configure', configure, ALLOWED_WHEN_FULL)
register('block', block, ALLOWED_WHEN_FULL)
register('drop', drop, ALLOWED_WHEN_FULL)
register('put_document', put_document, ADDS)
register('put_documents', put_documents, ADDS)
register('form_batch', batches.form, ALLOWED_WHEN_FULL)
register('open_batches', batches.open, ALLOWED_WHEN_FULL)
register('known_batches', batches.numbers, ALLOWED_WHEN_FULL)
register('tidy_batches', batches.tidy, ALLOWED_WHEN_FULL)
register('read_batch', batches.rows, ALLOWED_WHEN_FULL)
register('extend_batch', batches.extend, ALLOWED_WHEN_FULL)
register('ack_batches', batches.ack, ALLOWED_WHEN_FULL)
register('give_back_batches', batches.give_back, ALLOWED_WHEN_FULL)
register('put_field', put_field, ADDS)
register('keep_history', keep_history, ALLOWED_WHEN_FULL)
register('watch_events', readers.watch, ALLOWED_WHEN_FULL)
-- An event that no change tells. now, event, queue, detail as JSON
register('add_event', function(keys, args)
  readers.add(keys[1], args[1], 'A', args[2], args[3], args[4])
  return 1
end, ADDS)
