-- Leases, returns, dead letters, expiry, overflow: how a message leaves its queue or comes back to it.

-- -- exactly once ----------------------------------------------------------------------------------------

-- A call without an answer is repeated with its token, `<client>:<number>`; a client has few calls under way.
local function earlier_answer(Q, token)
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

-- An answer of n ones may be given as n.
local function remember(Q, token, answer)
  local client, number = match(token, '^(.*):(%d+)$')
  local key = Q.p .. 'tk:' .. client
  local is_new = call('HSET', key, number % 128, number .. ' ' .. cjson.encode(answer)) == 1
  if number % 64 == 0 or (is_new and call('HLEN', key) == 1) then call('EXPIRE', key, 3600) end
end

-- -- leaving the queue -----------------------------------------------------------------------------------

-- Put a message into the outbox: its targets may live on other nodes, so it waits here until a client has entered it
-- there. `meta` holds its origin and the reason. Returns the number of the outbox entry.
local function to_outbox(Q, meta, rec)
  -- By the clock, like delivery numbers: a number that a failover undid must not be used again.
  Q.oid = max(Q.oid + 1, Q.now * 1000)
  Q.lb = Q.lb + 1
  meta.t = Q.now
  local text = cjson.encode(meta)
  call('HSET', Q.p .. 'ob', S(Q.oid), S(#text) .. ':' .. text .. rec)
  return S(Q.oid)
end

local function remove_message(Q, seq, x, sent, why)
  forget_message(Q, seq, x, sent)
  count(Q, 'removed')
  if why == GONE_EXPIRED then count(Q, 'expired') end
  event(Q, 'D', why, seq)
end

-- Remove a damaged message that is out of its ready list already. `rec`: its record, or nil.
function damage.set_aside(Q, seq, x, sent, rec)
  local why = not rec and 'missing' or x and x.X and 'extra' or 'record'
  if not rec then call('ZADD', Q.p .. 'dm', seq, seq) end
  remove_message(Q, seq, x, sent or 0, damage.GONE)
  count(Q, 'damaged')
  damage.name(Q, seq, 'aside', why, x and x.i)
end

-- n plain messages are missing from the stream. Sequences without a record tell which, if there are exactly n of
-- them: sequences that were never used come in long gaps.
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

-- Dead-letter a message, or remove it if the queue has no dead-letter target. A FIFO group stays held until the
-- move is decided.
local function dead_letter(Q, seq, x, sent, rec, why, reason, origin)
  local is_damaged = not rec or (x and x.X)
  if is_damaged or not Q.c.dl then
    if is_damaged then
      damage.set_aside(Q, seq, x, sent, rec)
    else
      remove_message(Q, seq, x, sent, GONE[why])
    end
    if origin == 'lent' or origin == 'taken' then end_delivery(Q, seq, x or {}) end
    return 'removed'
  end
  x = x or published_extra(rec)
  forget_message(Q, seq, x, sent)
  if origin ~= 'waiting' and not Q.c.fifo then end_delivery(Q, seq, x) end
  local g = (origin == 'lent' or origin == 'taken') and Q.c.fifo and group_of(x) or nil
  return to_outbox(Q, {s = seq, m = sent, w = why, r = reason, x = x, o = origin, g = g}, rec)
end

-- Remove a ready or delayed message from its ready list.
local function leave_queue(Q, seq, x, rec)
  Q.by = Q.by - size_of(rec)
  if not (x and x.d and call('ZREM', Q.p .. 'd', seq) == 1) or Q.c.fifo then leave_ready_list(Q, seq, x) end
end

-- A ready or delayed message has expired.
local function expire_waiting(Q, seq, x, sent, rec)
  leave_queue(Q, seq, x, rec)
  if Q.c.dle then
    dead_letter(Q, seq, x, sent, rec, DEAD_EXPIRED, nil, 'waiting')
  else
    remove_message(Q, seq, x, sent, GONE_EXPIRED)
  end
end

-- -- leases ---------------------------------------------------------------------------------------

-- number, deadline, count, time of delivery, time sent, holder, consumer
local LEASE = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$'
local SETTLED = '^(%d+) %d+ %d+ (%d+) (%S+)'  -- the rest of a lease behind its number

local function lease_of(Q, seq)
  local text = call('HGET', Q.p .. 'o', seq)
  if not text then
    local run = run_with(Q, seq)
    if not run then return nil end
    split_run(Q, run)
    text = call('HGET', Q.p .. 'o', seq)
  end
  local number, till, n, delivered_ms, sent, holder, consumer = match(text, LEASE)
  -- An unreadable lease counts as expired: its message returns.
  if not number then
    number, till, n, delivered_ms, sent, holder, consumer = '0', S(Q.now), 1, S(Q.now), S(Q.now), '-', ''
  end
  return {number = number, till = tonumber(till), count = tonumber(n), delivered_ms = tonumber(delivered_ms),
    sent = tonumber(sent), holder = holder, consumer = consumer}
end

local function is_valid(Q, lease, number)
  return lease and lease.number == number and not (lease.till > 0 and lease.till <= Q.now)
end

local function lost(Q, seq)
  return state_of(Q, seq) and 'expired' or 'gone'
end

local function end_lease(Q, seq, lease)
  call('HDEL', Q.p .. 'o', seq)
  if Q.c.lq then Q.wakes = true end
  if lease.holder == '-' then
    call('ZREM', Q.p .. 'l', seq)
  else
    call('SREM', Q.p .. 'b:' .. lease.holder, seq)
  end
end

-- For queues without a retry policy; DEFAULT_RETRY in model.py.
local DEFAULT_RETRY = {rk = 'exponential', rb = 1000, rf = 2, rm = 900000, rj = 0.2, rn = true}

local function retry_delay(Q, seq, n, why)
  local c = Q.c.rk and Q.c or DEFAULT_RETRY
  if c.rk == 'none' or (c.rn and why == EXPIRED) then return 0 end
  local delay = c.rb
  if c.rk == 'exponential' then delay = min(delay * c.rf ^ min(n - 1, 100), c.rm) end
  if c.rj > 0 then
    -- Depends on the delivery alone.
    local chance = tonumber(sub(redis.sha1hex(seq .. ':' .. n), 1, 8), 16) / 4294967296
    delay = delay * (1 - c.rj * chance)
  end
  return floor(delay)
end

-- Return a message to its ready list or to the delayed ones. Its lease has ended.
local function requeue(Q, seq, x, sent, rec, due)
  x.d = due > Q.now and due or nil
  put_extra(Q, seq, x)
  Q.by = Q.by + size_of(rec)
  if x.d then
    call('ZADD', Q.p .. 'd', S(due), seq)
    deadline(Q, due)
    if Q.c.fifo then enqueue(Q, seq, x) end
  else
    enqueue(Q, seq, x)
    -- Mostly older than the ready messages: its retention ends earlier.
    if Q.ra == 0 or sent + Q.c.ret < Q.ra then
      Q.ra = sent + Q.c.ret
      deadline(Q, Q.ra)
    end
  end
end

-- Returns 'returned', 'removed', 'expired', or the number of an outbox entry.
local function return_delivery(Q, seq, lease, why, reason, delay)
  local c = Q.c
  local x = extra_of(Q, seq)
  local rec, sent = record_of(Q, seq, x)
  count(Q, ENDED[why])
  if not rec or (x and x.X) then
    end_lease(Q, seq, lease)
    damage.set_aside(Q, seq, x, sent, rec)
    end_delivery(Q, seq, x or {})
    return 'removed'
  end
  local over = is_expired(Q, x, sent)
  x = x or published_extra(rec)
  end_lease(Q, seq, lease)
  if why ~= RELEASED or over then
    x.c, x.n, x.f = lease.count, lease.number, x.f or lease.delivered_ms
    if reason then x.r = reason end
  end
  if over then
    if c.dle then
      return dead_letter(Q, seq, x, sent, rec, DEAD_EXPIRED, reason, 'lent')
    end
    remove_message(Q, seq, x, sent, GONE_EXPIRED)
    end_delivery(Q, seq, x)
    return 'expired'
  end
  if why ~= RELEASED and c.maxr and lease.count >= c.maxr and (c.dl or c.exd) then
    x.W, x.L = why, delay
    return dead_letter(Q, seq, x, sent, rec, DEAD_RECEIVES, reason, 'lent')
  end
  local wait = delay or retry_delay(Q, seq, lease.count, why)
  local due = wait > 0 and Q.now + wait or 0
  requeue(Q, seq, x, sent, rec, due)
  end_delivery(Q, seq, x)
  if why == RELEASED and c.lim then limits.refund(Q, group_of(x)) end
  event(Q, 'R', why, reason or '', seq, S(due))
  return 'returned'
end

-- -- time -----------------------------------------------------------------------------------------

local function make_due(Q, seq)
  local x = extra_of(Q, seq) or damage.replace(Q, seq)
  call('ZREM', Q.p .. 'd', seq)
  if Q.c.fifo then
    Q.wakes = true
    update_ticket(Q, group_of(x))
  else
    enqueue(Q, seq, x)
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

local function expire_message(Q, seq)
  call('ZREM', Q.p .. 'e', seq)
  if call('HEXISTS', Q.p .. 'o', seq) == 1 then return end  -- checked when it returns
  local x = extra_of(Q, seq)
  if not x then return end
  local rec, sent = record_of(Q, seq, x)
  if rec then expire_waiting(Q, seq, x, sent, rec) end
end

-- Keys of all non-empty ready lists; plain messages that were never delivered are in none.
local function ready_lists_of(Q)
  local p, ready_lists = Q.p, {}
  if Q.c.fifo then
    -- Oldest first, as many as can be too old.
    for _, g in ipairs(call('ZRANGE', p .. 'gs', 0, 2 * SLICE)) do ready_lists[#ready_lists + 1] = p .. 'r:' .. g end
    return ready_lists
  end
  if Q.bk > 0 then ready_lists[1] = p .. 'r:' .. PLAIN end
  if Q.mx > 0 then
    local parked = limits.parked(Q)
    for _, rank in ipairs(limits.ranks(Q, parked)) do
      for _, g in ipairs(limits.groups(Q, rank, parked)) do
        local name = rank .. ':' .. g
        if name ~= PLAIN then ready_lists[#ready_lists + 1] = p .. 'r:' .. name end
      end
    end
  end
  return ready_lists
end

-- Expire what is older than the retention, and set the time of the next check.
local function expire_old(Q)
  local p, horizon = Q.p, Q.now - Q.c.ret
  local oldest
  local left = SLICE
  Q.ra = 0
  while left > 0 do
    local id, rec, seq = next_plain(Q)
    if not id then break end
    if sent_of(id) > horizon then
      oldest = sent_of(id)
      break
    end
    Q.cur, Q.pl, Q.by = seq, Q.pl - 1, Q.by - size_of(rec)
    if Q.mx > 0 and not has_plain(Q) then leave_turns(Q, 0, '-') end
    if Q.c.dle then
      dead_letter(Q, S(seq), nil, sent_of(id), rec, DEAD_EXPIRED, nil, 'waiting')
    else
      remove_message(Q, S(seq), nil, sent_of(id), GONE_EXPIRED)
    end
    left = left - 1
  end
  local young = false
  for _, ready_list in ipairs(Q.bk + Q.mx > 0 and ready_lists_of(Q) or {}) do
    if young then break end
    local at, more, is_first = 0, true, true
    while more and left > 0 do
      local part = call('ZRANGE', ready_list, at, at + 99)
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
              more = false  -- later ones expire later, unless this one was delayed
              oldest = min(oldest, sent)
              young = Q.c.fifo and is_first  -- then all following groups are younger
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
    if byte(each, 1) == 76 then split_run(Q, sub(each, 2)) end
  end
  for _, seq in ipairs(call('SRANDMEMBER', held, SLICE)) do
    local lease = lease_of(Q, seq)
    call('SREM', held, seq)
    -- Counted as a delivery: a message that crashes its holder must reach the dead letters.
    if lease then return_delivery(Q, seq, lease, NACKED, 'its holder went away', 0) end
  end
  -- The rest follows in the next call: Redis serves nobody else during this one.
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
    local leased, l = head(Q, 'l')
    local delayed, d = head(Q, 'd')
    local expiring, e = head(Q, 'e')
    local holder, h = head(Q, 'hd')
    local limited, k
    if Q.c.kl then limited, k = head(Q, 'kb') end
    at = min(l or FAR, d or FAR, e or FAR, h or FAR, Q.ra > 0 and Q.ra or FAR, k or FAR, Q.qd > 0 and Q.qd or FAR)
    if at <= now then
      most = most - 1
      if d == at then
        make_due(Q, delayed)
      elseif e == at then
        expire_message(Q, expiring)
      elseif l == at and byte(leased, 1) == 76 then
        split_run(Q, sub(leased, 2))
      elseif l == at then
        local lease = lease_of(Q, leased)
        if lease then
          return_delivery(Q, leased, lease, EXPIRED, nil, nil)
        else
          call('ZREM', Q.p .. 'l', leased)
        end
      elseif k == at then
        limits.check(Q, limited)
      elseif Q.qd == at then
        Q.qd, Q.wakes = 0, true
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

-- The message that an overflowing queue drops first: the oldest of the lowest priority.
local function overflow_victim(Q)
  local p = Q.p
  if Q.c.fifo then
    local g = call('ZRANGE', p .. 'gs', 0, 0)[1]
    return g and call('ZRANGE', p .. 'r:' .. g, 0, 0)[1]
  end
  local function plain_first()
    local back = Q.bk > 0 and call('ZRANGE', p .. 'r:' .. PLAIN, 0, 0)[1]
    local id, _, seq = next_plain(Q)
    if back and (not id or tonumber(back) < seq) then return back end
    return id and S(seq)
  end
  if Q.mx == 0 then return plain_first() end
  local parked = limits.parked(Q)
  local ranks = limits.ranks(Q, parked)
  for i = #ranks, 1, -1 do
    local rank = ranks[i]
    local g = call('LINDEX', p .. 't:' .. rank, 0) or parked and parked[rank] and parked[rank][1]
    if g == '-' and rank == '0' then return plain_first() end
    if g then return call('ZRANGE', p .. 'r:' .. rank .. ':' .. g, 0, 0)[1] end
  end
end

local function overflow(Q)
  local c = Q.c
  if (not c.ml and not c.mb) or c.refuses then return end
  while (c.ml and waiting_count(Q) > c.ml) or (c.mb and Q.by > c.mb) do
    local seq = overflow_victim(Q)
    if not seq then
      -- All waiting messages are delayed: drop the newest.
      for _, each in ipairs(call('ZRANGE', Q.p .. 'd', 0, -1)) do
        if not seq or tonumber(each) > tonumber(seq) then seq = each end
      end
      if not seq then return end
    end
    local x = extra_of(Q, seq)
    local rec, sent = record_of(Q, seq, x)
    leave_queue(Q, seq, x, rec)
    if c.of == 'dead-letter' or not rec then
      dead_letter(Q, seq, x, sent, rec, DEAD_OVERFLOW, nil, 'waiting')
    else
      remove_message(Q, seq, x, sent, GONE[DEAD_OVERFLOW])
    end
  end
end
