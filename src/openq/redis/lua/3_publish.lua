-- The frame of a function, publishing, trimming of the history.

-- -- functions ------------------------------------------------------------------------------------

-- A function of one queue. `act(Q, args)` returns the answer, or nil and an error if it changed nothing. The reply:
-- 1 if the outbox holds messages, the time, the answer, and the damaged messages found.
local function on_queue(act)
  return function(keys, args)
    local Q, failed = open(keys, args)
    if not Q then return failed end
    local answer, refused = act(Q, args)
    if refused then return refused end
    save(Q)
    return {Q.lb > 0 and 1 or 0, Q.now, answer, damage.named(Q)}
  end
end

-- The same, after everything due has been applied.
local function up_to_date(act)
  return on_queue(function(Q, args)
    advance(Q)
    return act(Q, args)
  end)
end

-- The same for a call that must have one effect, by the token in args[2].
local function once(act)
  return on_queue(function(Q, args)
    local before = earlier_answer(Q, args[2])
    if before then return before end
    local answer, refused, kept = act(Q, args)
    if not refused then remember(Q, args[2], kept or answer) end
    return answer, refused
  end)
end

-- -- publishing ------------------------------------------------------------------------------------

-- `=` and the own id or the sequence of a message that is in the queue already.
local function named(Q, seq)
  local x = extra_of(Q, seq)
  return '=' .. (x and x.i and 'i' .. x.i or 's' .. seq)
end

local function dedup_key(Q, x)
  return Q.c.dpg and (x.g or '') .. '\0' .. x.k or x.k
end

local function duplicate_of(Q, x)
  local p = Q.p
  if x.k then
    local ended = call('ZRANGEBYSCORE', p .. 'kz', '-inf', S(Q.now), 'LIMIT', 0, 100)
    if #ended > 0 then
      call('ZREM', p .. 'kz', unpack(ended))
      call('HDEL', p .. 'k', unpack(ended))
    end
    local key = dedup_key(Q, x)
    local id = call('HGET', p .. 'k', key)
    if id and tonumber(call('ZSCORE', p .. 'kz', key) or 0) > Q.now then return '=' .. id end
  end
  if x.u then
    local seq = call('HGET', p .. 'u', x.u)
    if seq and call('HEXISTS', p .. 'x', seq) == 1 then return named(Q, seq) end
  end
  if x.i then
    -- A message that was set aside may have left its id and its key behind.
    local seq = call('HGET', p .. 'i', x.i)
    if seq and call('HEXISTS', p .. 'x', seq) == 1 then return '=i' .. x.i end
    if x.is and state_of(Q, x.is) then
      -- It has the form of the store's own ids: is it that of a message in the queue?
      local there = extra_of(Q, x.is)
      if not (there and there.i) then return '=i' .. x.i end
    end
  end
end

local function overflow_error(Q, size)
  local c = Q.c
  if not c.refuses then return nil end
  if c.ml and waiting_count(Q) >= c.ml then return '!full max_length ' .. S(c.ml) end
  if c.mb and Q.by + size > c.mb then return '!full max_bytes ' .. S(c.mb) end
end

-- Make the relative times of a draft absolute by Redis's clock. z: an explicit delay of 0.
local function settle_times(Q, x)
  local c, now = Q.c, Q.now
  if x.dr then x.d = now + x.dr end
  if not x.d and not x.z and c.delay > 0 then x.d = now + c.delay end
  if x.d and x.d <= now then x.d = nil end
  local from = max(x.d or 0, now)
  if x.er then x.e = from + x.er end
  if c.ttl then x.e = min(x.e or FAR, from + c.ttl) end
  x.dr, x.er, x.z, x.is = nil, nil, nil, nil
end

-- Add a new message to all structures.
local function enter(Q, rec, x)
  local p, now = Q.p, Q.now
  Q.seq = Q.seq + 1
  local seq = S(Q.seq)
  rec = special(rec)
  call('XADD', p .. 'm', seq .. '-' .. S(now), 'm', rec)
  Q.by = Q.by + size_of(rec)
  if x.i == true then x.i = nil end
  if x.i then call('HSET', p .. 'i', x.i, seq) end
  if x.u then call('HSET', p .. 'u', x.u, seq) end
  if x.k and Q.c.dw > 0 then
    local key = dedup_key(Q, x)
    call('HSET', p .. 'k', key, x.i and 'i' .. x.i or 's' .. seq)
    call('ZADD', p .. 'kz', 'GT', S(now + Q.c.dw), key)
  end
  local brief = x.e and x.e <= now
  if brief and Q.w > now then
    -- Offered to the consumers that wait now, on any machine.
    x.e, brief = now + GRACE_MS, false
  end
  put_extra(Q, seq, x)
  if x.e then
    call('ZADD', p .. 'e', S(x.e), seq)
    deadline(Q, x.e)
  end
  if x.d then
    call('ZADD', p .. 'd', S(x.d), seq)
    deadline(Q, x.d)
    if Q.c.fifo then enqueue(Q, seq, x) end
  else
    enqueue(Q, seq, x)
    if Q.ra == 0 then
      Q.ra = now + Q.c.ret
      deadline(Q, Q.ra)
    end
  end
  if brief and not x.d then expire_waiting(Q, seq, x, now, rec) end
  return seq
end

-- Dead-letter a refused message. It gets an unused sequence, from which the ids of its copies follow.
local function dead_letter_refused(Q, x, rec)
  Q.seq = Q.seq + 1
  to_outbox(Q, {s = S(Q.seq), m = Q.now, w = DEAD_OVERFLOW, x = x, o = 'refused'}, rec)
end

-- Returns its sequence, `=` and the id of an equal message, or `!` and why it is refused. A message of a committed
-- batch was accepted before: the limits of the queue do not apply.
local function publish_special(Q, rec, x, is_promised)
  local c = Q.c
  local size = size_of(rec)
  if c.mbody and size > c.mbody and not is_promised then return '!large ' .. S(size) end
  local twin = duplicate_of(Q, x)
  if twin then
    count(Q, 'deduplicated')
    return twin
  end
  local refused = not is_promised and overflow_error(Q, size)
  if refused then
    if c.of == 'reject-dead-letter' and c.dl then
      x.is, x.z = nil, nil
      dead_letter_refused(Q, x, rec)
    end
    return refused
  end
  settle_times(Q, x)
  local seq = enter(Q, rec, x)
  count(Q, 'published')
  readers.published(Q, seq, x.i)
  overflow(Q)
  return seq
end

-- Trim the history by time and number; messages in the queue stay. A limited part in one call.
local function trim(Q, always)
  local c = Q.c
  if not always and floor(Q.was[1] / 256) == floor(Q.seq / 256) then return end
  local p, horizon = Q.p, Q.now - c.hist
  local held = is_held(Q) and Q.hf or FAR
  local stream = p .. 'm'
  local spare = call('XLEN', stream) - c.hmax - waiting_count(Q) - in_flight_count(Q)
  local most, done = 1, 0
  while done < 1024 do
    local part = call('XRANGE', stream, S(Q.tr + 1), '+', 'COUNT', most)
    for _, found in ipairs(part) do
      local sent = sent_of(found[1])
      if sent >= held or (sent > horizon and spare <= 0) then return end
      local seq = seq_of(found[1])
      if seq > Q.cur and Q.pl > 0 then return end
      if not state_of(Q, S(seq)) then call('XDEL', stream, found[1]) end
      Q.tr = seq
      spare = spare - 1
    end
    if #part < most then return end
    done, most = done + most, 64  -- first one entry: mostly nothing is due
  end
end

-- Trim the events like the messages.
local function trim_events(Q, always)
  local c = Q.c
  if c.hist == 0 or (not always and floor(Q.was[1] / 1024) == floor(Q.seq / 1024)) then return end
  local events, horizon = Q.p .. 'h', Q.now - c.hist
  if is_held(Q) then
    if Q.hf < horizon or call('XLEN', events) > c.hmax * 3 then horizon = Q.hf end
    if call('XTRIM', events, 'MINID', '~', S(horizon) .. '-0') > 0 then Q.hl = max(Q.hl, horizon) end
    return
  end
  call('XTRIM', events, 'MINID', '~', S(horizon) .. '-0')
  call('XTRIM', events, 'MAXLEN', '~', S(c.hmax * 3))
end

-- args[before + 1] and so on: record and options of each message.
local function publish_all(Q, args, before, is_promised)
  local n = (#args - before) / 2
  if Q.seq + n > Q.last then return nil, failure('BLOCK') end
  advance(Q)
  local c, p, now = Q.c, Q.p, Q.now
  local stream, stamp = p .. 'm', '-' .. S(now)
  local answers, plain, size = {}, 0, 0
  for i = 1, n do
    local rec, extra = args[before + i * 2 - 1], args[before + i * 2]
    if extra == '' and c.simple then
      if plain == 0 then add_plain_turn(Q) end
      local seq = Q.seq + 1
      Q.seq = seq
      call('XADD', stream, format('%d', seq) .. stamp, 'm', rec)
      size = size + (byte(rec, 1) < 2 and #rec - 2 or size_of(rec))
      Q.pl = Q.pl + 1
      plain = plain + 1
      answers[i] = seq
      if c.hist == 0 then readers.published(Q, format('%d', seq)) end
    else
      local x = extra == '' and published_extra(rec) or cjson.decode(extra)
      if x.k == false then
        x.k = nil  -- a replay
      elseif c.dbc and not x.k then
        save(Q)
        return nil, failure('STALE')
      end
      answers[i] = publish_special(Q, rec, x, is_promised)
    end
  end
  if plain > 0 then
    count(Q, 'published', plain)
    Q.by = Q.by + size
    Q.wakes = true
    if Q.ra == 0 then
      Q.ra = now + c.ret
      deadline(Q, Q.ra)
    end
  end
  trim(Q)
  trim_events(Q)
  if plain == n then
    answers = {'~' .. S(Q.seq - n + 1)}  -- consecutive sequences: the first is enough
  else
    for i = 1, n do
      if type(answers[i]) == 'number' then answers[i] = S(answers[i]) end
    end
  end
  return answers
end

-- now, token, then record, options of each
local publish = once(function(Q, args)
  return publish_all(Q, args, 2)
end)

-- -- delivering ------------------------------------------------------------------------------------

local function flush_leases(Q, grant)
  if #grant.leases == 0 then return end
  call('HSET', Q.p .. 'o', unpack(grant.leases))
  if grant.holder == '-' then
    call('ZADD', Q.p .. 'l', unpack(grant.deadlines))
  else
    call('SADD', Q.p .. 'b:' .. grant.holder, unpack(grant.deadlines))
  end
  grant.leases, grant.deadlines = {}, {}
end

-- Add a delivery to the leases and the answer of this call; leases are written together.
local function add_lease(Q, grant, seq, sent, rec, x, text)
  local n = (x and x.c or 0) + 1
  local number = S(grant.number)
  grant.number = grant.number + 1
  local at = #grant.leases
  grant.leases[at + 1] = seq
  grant.leases[at + 2] = concat({number, grant.till, n, grant.delivered_ms, S(sent), grant.holder, grant.consumer}, ' ')
  if grant.holder == '-' then
    grant.deadlines[at + 1], grant.deadlines[at + 2] = grant.till, seq
  else
    grant.deadlines[#grant.deadlines + 1] = seq
  end
  grant.seqs[#grant.seqs + 1] = seq
  local answer = grant.answer
  local to = #answer
  answer[to + 1], answer[to + 2], answer[to + 3] = seq .. '-' .. S(sent), rec, n
  answer[to + 4] = text or ''
  Q.by = Q.by - size_of(rec)
  if n > 1 then
    grant.again = grant.again + 1
    if n == 10 and not Q.c.maxr then count(Q, 'stuck') end
  end
  if #grant.seqs % 500 == 0 then flush_leases(Q, grant) end
end
