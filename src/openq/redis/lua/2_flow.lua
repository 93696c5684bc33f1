-- How messages come in, are lent, come back and go; and what time alone brings about.

-- -- once ----------------------------------------------------------------------------------------

-- A call that got no answer is sent again with its token, `<client>:<number>`; a client has few in the air.
local function answered(Q, token)
  local client, number = match(token, '^(.*):(%d+)$')
  local text = call('HGET', Q.p .. 'tk:' .. client, number % 128)
  if not text or sub(text, 1, #number + 1) ~= number .. ' ' then return nil end
  local answer = cjson.decode(sub(text, #number + 2))
  if type(answer) == 'number' then
    local all = {}
    for i = 1, answer do all[i] = 1 end
    return all
  end
  return answer
end

-- An answer of many ones may be given as their number.
local function remember(Q, token, answer)
  local client, number = match(token, '^(.*):(%d+)$')
  local key = Q.p .. 'tk:' .. client
  call('HSET', key, number % 128, number .. ' ' .. cjson.encode(answer))
  if number % 64 == 0 or call('HLEN', key) == 1 then call('EXPIRE', key, 3600) end
end

-- -- going away -----------------------------------------------------------------------------------

-- A message that leaves for other queues: those may live on other nodes, so it waits here until a client
-- has entered it there. `meta` says where it comes from and why; returns the number of this transfer.
local function to_limbo(Q, meta, rec)
  -- By the clock, as delivery numbers: what Redis forgot in a failover must not be taken for a repetition.
  Q.oid = max(Q.oid + 1, Q.now * 1000)
  Q.lb = Q.lb + 1
  meta.t = Q.now
  local text = cjson.encode(meta)
  call('HSET', Q.p .. 'ob', S(Q.oid), S(#text) .. ':' .. text .. rec)
  return S(Q.oid)
end

local function removed(Q, seq, x, sent, why)
  forget(Q, seq, x, sent)
  count(Q, 'removed')
  if why == GONE_EXPIRED then count(Q, 'expired') end
  event(Q, 'D', why, seq)
end

-- It is out of its place already, and delivered no more. `rec`: its record, if that is there.
function damage.set_aside(Q, seq, x, sent, rec)
  local why = not rec and 'missing' or x and x.X and 'extra' or 'record'
  if not rec then call('ZADD', Q.p .. 'dm', seq, seq) end
  removed(Q, seq, x, sent or 0, damage.GONE)
  count(Q, 'damaged')
  damage.name(Q, seq, 'aside', why, x and x.i)
end

-- So many plain messages are gone from the stream. Which, is seen from the sequences that have no record: those
-- that were never given to a message are neither many nor alone.
function damage.lost(Q, n)
  if n <= 0 then return end
  local p, gaps, total = Q.p, {}, 0
  call('ZREMRANGEBYSCORE', p .. 'dm', '-inf', S(Q.tr))
  local function look(seq)
    seq = S(seq)
    if not call('ZSCORE', p .. 'dm', seq) and call('HEXISTS', p .. 'x', seq) == 0 then
      total = total + 1
      gaps[total] = seq
    end
  end
  local last, from, left = Q.seq + 1, '+', n <= SLICE and 20 or 0
  while left > 0 do
    local part = call('XREVRANGE', p .. 'm', from, S(Q.tr + 1), 'COUNT', SLICE)
    local is_end = #part < SLICE
    if is_end then part[#part + 1] = {S(Q.tr) .. '-0'} end
    for _, found in ipairs(part) do
      local seq = seq_of(found[1])
      if last - seq - 1 <= n then
        for missing = seq + 1, last - 1 do look(missing) end
      end
      last, from = seq, '(' .. found[1]
    end
    left = is_end and 0 or left - 1
  end
  count(Q, 'removed', n)
  count(Q, 'damaged', n)
  if total == n then
    for _, seq in ipairs(gaps) do
      call('ZADD', p .. 'dm', seq, seq)
      event(Q, 'D', damage.GONE, seq)
      damage.name(Q, seq, 'aside', 'missing')
    end
  else
    damage.name(Q, S(n), 'lost', 'missing')
  end
end

-- To the dead letters if the queue has any, else away. `held`: the group stays held until that is decided.
local function bury(Q, seq, x, sent, rec, why, reason, origin)
  local is_damaged = not rec or (x and x.X)
  if is_damaged or not Q.c.dl then
    if is_damaged then
      damage.set_aside(Q, seq, x, sent, rec)
    else
      removed(Q, seq, x, sent, GONE[why])
    end
    if origin == 'lent' or origin == 'taken' then settle(Q, seq, x or {}) end
    return 'removed'
  end
  x = x or light_of(rec)
  forget(Q, seq, x, sent)
  local g = (origin == 'lent' or origin == 'taken') and Q.c.fifo and group_of(x) or nil
  return to_limbo(Q, {s = seq, m = sent, w = why, r = reason, x = x, o = origin, g = g}, rec)
end

-- Out of the waiting or the delayed ones, wherever it stands.
local function leave_line(Q, seq, x, rec)
  Q.by = Q.by - size_of(rec)
  if not (x and x.d and call('ZREM', Q.p .. 'd', seq) == 1) or Q.c.fifo then step_out(Q, seq, x) end
end

-- A waiting message whose time is over.
local function expire_waiting(Q, seq, x, sent, rec)
  leave_line(Q, seq, x, rec)
  if Q.c.dle then
    bury(Q, seq, x, sent, rec, DEAD_EXPIRED, nil, 'waiting')
  else
    removed(Q, seq, x, sent, GONE_EXPIRED)
  end
end

-- -- leases ---------------------------------------------------------------------------------------

-- number, until, count, lent, sent, holder, consumer
local LEASE = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$'
local SETTLED = '^(%d+) %d+ %d+ (%d+) (%S+)'  -- what is left to know of it once its number is checked

local function lease_of(Q, seq)
  local text = call('HGET', Q.p .. 'o', seq)
  if not text then
    local run = run_with(Q, seq)
    if not run then return nil end
    break_up(Q, run)
    text = call('HGET', Q.p .. 'o', seq)
  end
  local number, till, n, lent, sent, holder, consumer = match(text, LEASE)
  -- One that cannot be read is over: its message comes back.
  if not number then number, till, n, lent, sent, holder, consumer = '0', S(Q.now), 1, S(Q.now), S(Q.now), '-', '' end
  return {number = number, till = tonumber(till), count = tonumber(n), lent = tonumber(lent),
    sent = tonumber(sent), holder = holder, consumer = consumer}
end

local function is_live(Q, lease, number)
  return lease and lease.number == number and not (lease.till > 0 and lease.till <= Q.now)
end

local function lost(Q, seq)
  return state_of(Q, seq) and 'expired' or 'gone'
end

local function end_lease(Q, seq, lease)
  call('HDEL', Q.p .. 'o', seq)
  if lease.holder == '-' then
    call('ZREM', Q.p .. 'l', seq)
  else
    call('SREM', Q.p .. 'b:' .. lease.holder, seq)
  end
end

-- Of a queue for which nobody chose a policy; DEFAULT_RETRY in model.py.
local DEFAULT_RETRY = {rk = 'exponential', rb = 1000, rf = 2, rm = 900000, rj = 0.2, rn = true}

local function retry_delay(Q, seq, n, why)
  local c = Q.c.rk and Q.c or DEFAULT_RETRY
  if c.rk == 'none' or (c.rn and why == EXPIRED) then return 0 end
  local delay = c.rb
  if c.rk == 'exponential' then delay = min(delay * c.rf ^ min(n - 1, 100), c.rm) end
  if c.rj > 0 then
    -- Depends on nothing but the delivery.
    local chance = tonumber(sub(redis.sha1hex(seq .. ':' .. n), 1, 8), 16) / 4294967296
    delay = delay * (1 - c.rj * chance)
  end
  return floor(delay)
end

-- Back to its place, or among the delayed. The lease is over already.
local function stand_again(Q, seq, x, sent, rec, due)
  x.d = due > Q.now and due or nil
  put_extra(Q, seq, x)
  Q.by = Q.by + size_of(rec)
  if x.d then
    call('ZADD', Q.p .. 'd', S(due), seq)
    deadline(Q, due)
    if Q.c.fifo then stand(Q, seq, x) end
  else
    stand(Q, seq, x)
    -- Older, mostly, than what waits: the queue has to look again before it would for those.
    if Q.ra == 0 or sent + Q.c.ret < Q.ra then
      Q.ra = sent + Q.c.ret
      deadline(Q, Q.ra)
    end
  end
end

-- Returns 'returned', 'removed', 'expired', or the number of a transfer that is to be decided.
local function give_back(Q, seq, lease, why, reason, delay)
  local c = Q.c
  local x = extra_of(Q, seq)
  local rec, sent = record_of(Q, seq, x)
  count(Q, ENDED[why])
  if not rec or (x and x.X) then
    end_lease(Q, seq, lease)
    damage.set_aside(Q, seq, x, sent, rec)
    settle(Q, seq, x or {})
    return 'removed'
  end
  local over = is_over(Q, x, sent)
  x = x or light_of(rec)
  end_lease(Q, seq, lease)
  if why ~= RELEASED or over then
    x.c, x.n, x.f = lease.count, lease.number, x.f or lease.lent
    if reason then x.r = reason end
  end
  if over then
    if c.dle then
      return bury(Q, seq, x, sent, rec, DEAD_EXPIRED, reason, 'lent')
    end
    removed(Q, seq, x, sent, GONE_EXPIRED)
    settle(Q, seq, x)
    return 'expired'
  end
  if why ~= RELEASED and c.maxr and lease.count >= c.maxr and (c.dl or c.exd) then
    x.W, x.L = why, delay
    return bury(Q, seq, x, sent, rec, DEAD_RECEIVES, reason, 'lent')
  end
  local wait = delay or retry_delay(Q, seq, lease.count, why)
  local due = wait > 0 and Q.now + wait or 0
  stand_again(Q, seq, x, sent, rec, due)
  settle(Q, seq, x)
  event(Q, 'R', why, reason or '', seq, S(due))
  return 'returned'
end

-- -- time -----------------------------------------------------------------------------------------

local function come_due(Q, seq)
  local x = extra_of(Q, seq) or damage.replace(Q, seq)
  call('ZREM', Q.p .. 'd', seq)
  if Q.c.fifo then
    Q.wakes = true
    offer(Q, group_of(x))
  else
    stand(Q, seq, x)
  end
  if x.e and x.e <= Q.now then
    local rec, sent = record_of(Q, seq, x)
    if rec then expire_waiting(Q, seq, x, sent, rec) end
  end
  if Q.ra == 0 then
    Q.ra = Q.now + Q.c.ret
    deadline(Q, Q.ra)
  end
end

local function expire_mortal(Q, seq)
  call('ZREM', Q.p .. 'e', seq)
  if call('HEXISTS', Q.p .. 'o', seq) == 1 then return end  -- looked at when it comes back
  local x = extra_of(Q, seq)
  if not x then return end
  local rec, sent = record_of(Q, seq, x)
  if rec then expire_waiting(Q, seq, x, sent, rec) end
end

-- Keys of all lanes with something in them but the plain messages that were never handed out.
local function lanes_of(Q)
  local p, lanes = Q.p, {}
  if Q.c.fifo then
    -- Oldest first, as far as anything can be too old.
    for _, g in ipairs(call('ZRANGE', p .. 'gs', 0, 2 * SLICE)) do lanes[#lanes + 1] = p .. 'r:' .. g end
    return lanes
  end
  if Q.bk > 0 then lanes[1] = p .. 'r:' .. PLAIN end
  if Q.mx > 0 then
    local ranks = call('ZRANGE', p .. 'p', 0, -1)
    if ranks[1] ~= '0' then ranks[#ranks + 1] = '0' end
    for _, rank in ipairs(ranks) do
      for _, g in ipairs(call('LRANGE', p .. 't:' .. rank, 0, -1)) do
        local name = rank .. ':' .. g
        if name ~= PLAIN then lanes[#lanes + 1] = p .. 'r:' .. name end
      end
    end
  end
  return lanes
end

-- What is older than the queue keeps. Then the time at which to look again.
local function expire_old(Q)
  local p, horizon = Q.p, Q.now - Q.c.ret
  local oldest
  local left = SLICE
  Q.ra = 0
  while left > 0 do
    local id, rec, seq = tail(Q)
    if not id then break end
    if sent_of(id) > horizon then
      oldest = sent_of(id)
      break
    end
    Q.cur, Q.pl, Q.by = seq, Q.pl - 1, Q.by - size_of(rec)
    if Q.mx > 0 and not plain_waits(Q) then leave_turns(Q, 0, '-') end
    if Q.c.dle then
      bury(Q, S(seq), nil, sent_of(id), rec, DEAD_EXPIRED, nil, 'waiting')
    else
      removed(Q, S(seq), nil, sent_of(id), GONE_EXPIRED)
    end
    left = left - 1
  end
  local young = false
  for _, lane in ipairs(Q.bk + Q.mx > 0 and lanes_of(Q) or {}) do
    if young then break end
    local at, more, is_first = 0, true, true
    while more and left > 0 do
      local part = call('ZRANGE', lane, at, at + 99)
      more = #part == 100
      for _, seq in ipairs(part) do
        local x = extra_of(Q, seq)
        local rec, sent = record_of(Q, seq, x)
        local since = rec and max(sent, x and x.d or 0)
        if rec and since <= horizon and not call('ZSCORE', p .. 'd', seq) and left > 0 then
          expire_waiting(Q, seq, x, sent, rec)
          left = left - 1
        else
          at = at + 1
          if rec then
            if not oldest or since < oldest then oldest = since end
            if sent > horizon then
              more = false  -- those behind it came later, but may be kept for less long if this one was delayed
              oldest = min(oldest, sent)
              young = Q.c.fifo and is_first  -- then all of the groups behind this one came later
              break
            end
          end
        end
        is_first = false
      end
    end
  end
  if left == 0 then
    Q.ra = Q.now + 1
  elseif oldest then
    Q.ra = oldest + Q.c.ret
  end
end

local function drop_holder(Q, holder)
  local held = Q.p .. 'b:' .. holder
  for _, each in ipairs(call('SMEMBERS', held)) do
    if byte(each, 1) == 76 then break_up(Q, sub(each, 2)) end
  end
  for _, seq in ipairs(call('SRANDMEMBER', held, SLICE)) do
    local lease = lease_of(Q, seq)
    call('SREM', held, seq)
    -- Counted: a message that kills its holder must reach the dead letters some day.
    if lease then give_back(Q, seq, lease, NACKED, 'its holder went away', 0) end
  end
  -- The rest the next time: Redis does nothing else meanwhile.
  if call('EXISTS', held) == 0 then call('ZREM', Q.p .. 'hd', holder) end
end

local function head(Q, name)
  local first = call('ZRANGE', Q.p .. name, 0, 0, 'WITHSCORES')
  return first[1], tonumber(first[2])
end

local function advance(Q)
  if Q.next == 0 or Q.now < Q.next then return end
  local now, most = Q.now, SLICE
  local at
  repeat
    local lent, l = head(Q, 'l')
    local delayed, d = head(Q, 'd')
    local mortal, e = head(Q, 'e')
    local holder, h = head(Q, 'hd')
    at = min(l or FAR, d or FAR, e or FAR, h or FAR, Q.ra > 0 and Q.ra or FAR)
    if at <= now then
      most = most - 1
      if d == at then
        come_due(Q, delayed)
      elseif e == at then
        expire_mortal(Q, mortal)
      elseif l == at and byte(lent, 1) == 76 then
        break_up(Q, sub(lent, 2))
      elseif l == at then
        local lease = lease_of(Q, lent)
        if lease then
          give_back(Q, lent, lease, EXPIRED, nil, nil)
        else
          call('ZREM', Q.p .. 'l', lent)
        end
      elseif h == at then
        drop_holder(Q, holder)
        if call('ZSCORE', Q.p .. 'hd', holder) then most = 0 end
      else
        expire_old(Q)
      end
    end
  until at > now or most == 0
  Q.next = at < FAR and at or 0
end

-- -- overflow -------------------------------------------------------------------------------------

-- What an overflowing queue lets go first: the oldest of the lowest priority.
local function lowest(Q)
  local p = Q.p
  if Q.c.fifo then
    local g = call('ZRANGE', p .. 'gs', 0, 0)[1]
    return g and call('ZRANGE', p .. 'r:' .. g, 0, 0)[1]
  end
  local function plain_first()
    local back = Q.bk > 0 and call('ZRANGE', p .. 'r:' .. PLAIN, 0, 0)[1]
    local id, _, seq = tail(Q)
    if back and (not id or tonumber(back) < seq) then return back end
    return id and S(seq)
  end
  if Q.mx == 0 then return plain_first() end
  local ranks = call('ZRANGE', p .. 'p', 0, -1)
  table.insert(ranks, 1, '0')
  for _, rank in ipairs(ranks) do
    local g = call('LINDEX', p .. 't:' .. rank, 0)
    if g == '-' and rank == '0' then return plain_first() end
    if g then return call('ZRANGE', p .. 'r:' .. rank .. ':' .. g, 0, 0)[1] end
  end
end

local function overflow(Q)
  local c = Q.c
  if (not c.ml and not c.mb) or c.refuses then return end
  while (c.ml and waiting_count(Q) > c.ml) or (c.mb and Q.by > c.mb) do
    local seq = lowest(Q)
    if not seq then
      -- Everything waiting is delayed: the newest goes.
      for _, each in ipairs(call('ZRANGE', Q.p .. 'd', 0, -1)) do
        if not seq or tonumber(each) > tonumber(seq) then seq = each end
      end
      if not seq then return end
    end
    local x = extra_of(Q, seq)
    local rec, sent = record_of(Q, seq, x)
    leave_line(Q, seq, x, rec)
    if c.of == 'dead-letter' or not rec then
      bury(Q, seq, x, sent, rec, DEAD_OVERFLOW, nil, 'waiting')
    else
      removed(Q, seq, x, sent, GONE[DEAD_OVERFLOW])
    end
  end
end

-- -- functions ------------------------------------------------------------------------------------

-- A function for one queue. `act(Q, args)` returns the answer, or nil and an error where nothing was done; the
-- answer goes out with whether something is in limbo, and the time; at its end, what was found damaged.
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

-- The same once everything has happened that time alone brings about.
local function up_to_date(act)
  return on_queue(function(Q, args)
    advance(Q)
    return act(Q, args)
  end)
end

-- The same for what may be done only once, by the token in args[2].
local function once(act)
  return on_queue(function(Q, args)
    local before = answered(Q, args[2])
    if before then return before end
    local answer, refused, kept = act(Q, args)
    if not refused then remember(Q, args[2], kept or answer) end
    return answer, refused
  end)
end

-- -- coming in ------------------------------------------------------------------------------------

-- The id by which a message that is here already is known; `=` and its own id, or its sequence.
local function named(Q, seq)
  local x = extra_of(Q, seq)
  return '=' .. (x and x.i and 'i' .. x.i or 's' .. seq)
end

local function dedup_key(Q, x)
  return Q.c.dpg and (x.g or '') .. '\0' .. x.k or x.k
end

local function repeats(Q, x)
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
    -- What was set aside may have left its id and its key behind, if nothing told them any more.
    local seq = call('HGET', p .. 'i', x.i)
    if seq and call('HEXISTS', p .. 'x', seq) == 1 then return '=i' .. x.i end
    if x.is and state_of(Q, x.is) then
      -- It looks like one of the store's own ids: that of a message which is here?
      local there = extra_of(Q, x.is)
      if not (there and there.i) then return '=i' .. x.i end
    end
  end
end

local function refusal(Q, size)
  local c = Q.c
  if not c.refuses then return nil end
  if c.ml and waiting_count(Q) >= c.ml then return '!full max_length ' .. S(c.ml) end
  if c.mb and Q.by + size > c.mb then return '!full max_bytes ' .. S(c.mb) end
end

-- Times of a draft are relative until Redis's clock makes them absolute. z: a delay of 0 was asked for.
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

-- A new message takes its place in every structure.
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
    -- Offered to those who wait just now, on whatever machine.
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
    if Q.c.fifo then stand(Q, seq, x) end
  else
    stand(Q, seq, x)
    if Q.ra == 0 then
      Q.ra = now + Q.c.ret
      deadline(Q, Q.ra)
    end
  end
  if brief and not x.d then expire_waiting(Q, seq, x, now, rec) end
  return seq
end

-- What was never in the queue. Its sequence, which no other message has, names all its copies.
local function bury_refused(Q, x, rec)
  Q.seq = Q.seq + 1
  to_limbo(Q, {s = S(Q.seq), m = Q.now, w = DEAD_OVERFLOW, x = x, o = 'refused'}, rec)
end

-- Its sequence, `=` and the id of one that it repeats, or `!` and why it is refused. One that is promised was
-- let in before: whatever limits the queue has by now, it takes it.
local function publish_special(Q, rec, x, is_promised)
  local c = Q.c
  local size = size_of(rec)
  if c.mbody and size > c.mbody and not is_promised then return '!large ' .. S(size) end
  local twin = repeats(Q, x)
  if twin then
    count(Q, 'deduplicated')
    return twin
  end
  local refused = not is_promised and refusal(Q, size)
  if refused then
    if c.of == 'reject-dead-letter' and c.dl then
      x.is, x.z = nil, nil
      bury_refused(Q, x, rec)
    end
    return refused
  end
  settle_times(Q, x)
  local seq = enter(Q, rec, x)
  count(Q, 'published')
  overflow(Q)
  return seq
end

-- History is kept for so long and no longer; what is live stays whatever its age. A little at a time.
local function trim(Q, always)
  local c = Q.c
  if not always and floor(Q.was[1] / 256) == floor(Q.seq / 256) then return end
  local p, horizon = Q.p, Q.now - c.hist
  local held = is_held(Q) and Q.hf or FAR
  local stream = p .. 'm'
  local spare = call('XLEN', stream) - c.hmax - waiting_count(Q) - lent_count(Q)
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
    done, most = done + most, 64  -- the first one alone: mostly it is not time yet
  end
end

-- Events go with the messages that they are about.
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

-- Record and extra of each, from args[before + 1] on.
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
      if plain == 0 then turn_plain(Q) end
      local seq = Q.seq + 1
      Q.seq = seq
      call('XADD', stream, format('%.0f', seq) .. stamp, 'm', rec)
      size = size + (byte(rec, 1) < 2 and #rec - 2 or size_of(rec))
      Q.pl = Q.pl + 1
      plain = plain + 1
      answers[i] = seq
    else
      local x = extra == '' and light_of(rec) or cjson.decode(extra)
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
    answers = {'~' .. S(Q.seq - n + 1)}  -- they follow each other: the first says it all
  else
    for i = 1, n do
      if type(answers[i]) == 'number' then answers[i] = S(answers[i]) end
    end
  end
  return answers
end

-- now, token, then record, extra of each
local publish = once(function(Q, args)
  return publish_all(Q, args, 2)
end)

-- -- going out ------------------------------------------------------------------------------------

local function flush_loan(Q, loan)
  if #loan.leases == 0 then return end
  call('HSET', Q.p .. 'o', unpack(loan.leases))
  if loan.holder == '-' then
    call('ZADD', Q.p .. 'l', unpack(loan.deadlines))
  else
    call('SADD', Q.p .. 'b:' .. loan.holder, unpack(loan.deadlines))
  end
  loan.leases, loan.deadlines = {}, {}
end

-- Leases and answers of what is lent in one call, written together.
local function lend(Q, loan, seq, sent, rec, x, text)
  local n = (x and x.c or 0) + 1
  local number = S(loan.number)
  loan.number = loan.number + 1
  local at = #loan.leases
  loan.leases[at + 1] = seq
  loan.leases[at + 2] = concat({number, loan.till, n, loan.lent, S(sent), loan.holder, loan.consumer}, ' ')
  if loan.holder == '-' then
    loan.deadlines[at + 1], loan.deadlines[at + 2] = loan.till, seq
  else
    loan.deadlines[#loan.deadlines + 1] = seq
  end
  loan.seqs[#loan.seqs + 1] = seq
  local answer = loan.answer
  local to = #answer
  answer[to + 1], answer[to + 2], answer[to + 3] = seq .. '-' .. S(sent), rec, n
  answer[to + 4] = text or ''
  Q.by = Q.by - size_of(rec)
  if n > 1 then
    loan.again = loan.again + 1
    if n == 10 and not Q.c.maxr then count(Q, 'stuck') end
  end
  if #loan.seqs % 500 == 0 then flush_loan(Q, loan) end
end
