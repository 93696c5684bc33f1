-- Receiving and settling.

-- -- delivery order ----------------------------------------------------------------------------

local function merged(Q, most)
  -- The plain ready list: returned messages and those never delivered, by sequence.
  local p, seqs = Q.p, {}
  local back = Q.bk > 0 and call('ZRANGE', p .. 'r:' .. PLAIN, 0, most - 1) or {}
  local next_back = 1
  local from, left = Q.cur + 1, Q.pl
  while left > 0 and #seqs < most do
    local part = call('XRANGE', p .. 'm', S(from), '+', 'COUNT', min(most + 16, 1000))
    if #part == 0 then break end
    for _, found in ipairs(part) do
      local seq = seq_of(found[1])
      from = seq + 1
      if (byte(found[2][2], 1) or 0) % 2 == 0 and not (Q.sk > 0 and call('ZSCORE', p .. 'sk', S(seq))) then
        left = left - 1
        while back[next_back] and tonumber(back[next_back]) < seq do
          seqs[#seqs + 1] = back[next_back]
          next_back = next_back + 1
        end
        seqs[#seqs + 1] = S(seq)
      end
    end
  end
  while back[next_back] do
    seqs[#seqs + 1] = back[next_back]
    next_back = next_back + 1
  end
  return seqs
end

-- The first `most` ready messages in the order they would have if no group were held. `all`: including those of FIFO
-- groups that are not due yet. `free`: only those that a receive would get now.
local function in_order(Q, most, all, free)
  local p, seqs = Q.p, {}
  if Q.c.fifo then
    -- Group by group; held groups come last.
    local function add(g)
      local at, size = 0, min(most, 1000)
      local held_from = free and groups.first_out(Q, g)
      local left = free and limits.of_key(Q, g) or FAR
      repeat
        local part = call('ZRANGE', p .. 'r:' .. g, at, at + size - 1)
        for _, seq in ipairs(part) do
          if #seqs == most then return end
          if free and (tonumber(seq) > held_from or call('ZSCORE', p .. 'd', seq)) then return end
          left = left - 1
          if left < 0 then return end
          if all or not call('ZSCORE', p .. 'd', seq) then seqs[#seqs + 1] = seq end
        end
        at = at + size
      until #part < size
    end
    for _, rank in ipairs(call('ZREVRANGE', p .. 'p', 0, -1)) do
      for _, g in ipairs(call('ZRANGE', p .. 'gz:' .. rank, 0, most - #seqs - 1)) do add(g) end
      if #seqs == most then return seqs end
    end
    if free then return seqs end
    -- Only the oldest of very many groups: more would block Redis.
    for _, g in ipairs(call('ZRANGE', p .. 'gs', 0, max(min(most, 20000), 2000) - 1)) do
      if #seqs == most then break end
      if call('HEXISTS', p .. 'gr', g) == 0 then add(g) end
    end
    return seqs
  end
  if Q.mx == 0 then return merged(Q, most) end
  local parked = not free and limits.parked(Q)
  for _, rank in ipairs(limits.ranks(Q, parked)) do
    local ready_lists = {}
    for _, g in ipairs(limits.groups(Q, rank, parked)) do
      local name = rank .. ':' .. g
      local wanted = free and min(most, limits.of_key(Q, g)) or most
      ready_lists[#ready_lists + 1] = name == PLAIN and merged(Q, most)
        or call('ZRANGE', p .. 'r:' .. name, 0, wanted - 1)
    end
    local turn, longest = 1, 0
    for _, ready_list in ipairs(ready_lists) do longest = max(longest, #ready_list) end
    while turn <= longest and #seqs < most do
      for _, ready_list in ipairs(ready_lists) do
        if ready_list[turn] then seqs[#seqs + 1] = ready_list[turn] end
      end
      turn = turn + 1
    end
  end
  return seqs
end

-- -- receive --------------------------------------------------------------------------------------

local function take_out(Q, seq, x)
  leave_ready_list(Q, seq, x)
  if Q.c.fifo then
    local g = group_of(x)
    groups.add_lease(Q, g, seq)
    update_ticket(Q, g)
  end
end

-- Messages of these types, or these messages, in order; the others stay. Examines the first ten thousand only.
local function select_messages(Q, wanted, limit)
  local types, seqs = wanted.types, wanted.seqs
  local found, held, wanted, left = {}, {}, 0, {}
  for _, seq in ipairs(in_order(Q, 10000, true)) do
    if wanted == limit then break end
    local x = extra_of(Q, seq)
    local rec, sent = record_of(Q, seq, x)
    local known_x = x or published_extra(rec)
    local g = group_of(known_x)
    local busy = Q.c.fifo and (held[g] or groups.first_out(Q, g) < tonumber(seq) or call('ZSCORE', Q.p .. 'd', seq))
    local is_damaged = not rec or known_x.X
    if Q.c.kl and not busy then
      left[g] = left[g] or limits.of_key(Q, g)
      busy = left[g] < 1
    end
    if not busy and (seqs and seqs[seq] or types and (is_damaged or (known_x.t and types[known_x.t]))) then
      if not is_damaged then wanted = wanted + 1 end
      if left[g] then left[g] = left[g] - 1 end
      found[#found + 1] = {seq, sent, rec, x}
    else
      held[g] = true
    end
  end
  for _, each in ipairs(found) do take_out(Q, each[1], each[4]) end
  return found
end

-- Messages that were never delivered. Consecutive ones get one run as their lease.
local function receive_plain(Q, grant, limit)
  local stream, horizon = Q.p .. 'm', Q.now - Q.c.ret
  local answer, seqs, sents = grant.answer, {}, {}
  local n, to, size = 0, #answer, 0
  while limit > n and Q.pl > n do
    local wanted = min(limit - n, 500)
    local part = call('XRANGE', stream, format('%d', Q.cur + 1), '+', 'COUNT', wanted)
    local last
    for i = 1, #part do
      local found = part[i]
      local id, rec = found[1], found[2][2]
      local dash = find(id, '-', 1, true)
      local seq, flags = sub(id, 1, dash - 1), byte(rec, 1) or 0
      if flags % 2 == 0 then
        local sent = sub(id, dash + 1)
        if tonumber(sent) <= horizon then
          limit = 0  -- expired: the general path handles it
          break
        end
        n = n + 1
        seqs[n], sents[n] = seq, sent
        answer[to + 1], answer[to + 2], answer[to + 3], answer[to + 4] = id, rec, 1, ''
        to = to + 4
        size = size + (flags < 2 and #rec - 2 or size_of(rec))
      end
      last = seq
    end
    if last then Q.cur = tonumber(last) end
    if #part < wanted then
      if limit > n then
        damage.lost(Q, Q.pl - n)
        Q.pl = n
      end
      break
    end
  end
  Q.pl, Q.by = Q.pl - n, Q.by - size
  if n == 0 then return end
  grant.seqs = seqs
  local holder, till = grant.holder, grant.till
  -- Consecutive, and nothing left for the general path.
  local whole = tonumber(seqs[n]) - tonumber(seqs[1]) == n - 1 and (limit == n or Q.pl == 0)
  if n > 1 and n <= 500 and whole and Q.c.hist > 0 then
    local number = S(grant.number)
    call('HSET', Q.p .. 'ru', number, concat({seqs[1], till, grant.delivered_ms, n, string.rep('1', n), holder,
      grant.consumer}, ' '))
    call('ZADD', Q.p .. 'rn', seqs[1], number)
    if holder == '-' then
      call('ZADD', Q.p .. 'l', till, 'L' .. number)
    else
      call('SADD', Q.p .. 'b:' .. holder, 'L' .. number)
    end
    Q.rc = Q.rc + n
    grant.number, grant.step = grant.number + 1, 0
    return
  end
  local terms = ' ' .. till .. ' 1 ' .. grant.delivered_ms .. ' '
  local who = ' ' .. holder .. ' ' .. grant.consumer
  for from = 1, n, 500 do
    local leases, deadlines, at = {}, {}, 0
    for i = from, min(from + 499, n) do
      local seq = seqs[i]
      leases[at + 1], leases[at + 2] = seq, format('%d', grant.number) .. terms .. sents[i] .. who
      deadlines[at + 1], deadlines[at + 2] = till, seq
      at = at + 2
      grant.number = grant.number + 1
    end
    call('HSET', Q.p .. 'o', unpack(leases))
    if holder == '-' then
      call('ZADD', Q.p .. 'l', unpack(deadlines))
    else
      call('SADD', Q.p .. 'b:' .. holder, unpack(seqs, from, min(from + 499, n)))
    end
  end
end

-- Extend the leases that are bound to a holder.
local function renew_holder(Q, holder, span)
  call('ZADD', Q.p .. 'hd', 'GT', S(Q.now + span), holder)
  deadline(Q, Q.now + span)
end

-- One request of a call: {first number, deadline, step from one number to the next, then id, record, count,
-- extra of each}; {'!'} if `most_out` messages or more are in flight.
local function receive_one(Q, limit, lease, consumer, wanted, version, holder, beat, max_in_flight)
  local c, now = Q.c, Q.now
  local answer = {}
  if max_in_flight and in_flight_count(Q) + Q.lb >= max_in_flight then return {'!'} end
  if c.lq then limit = min(limit, limits.of_queue(Q)) end
  if c.paused or limit < 1 or (Q.pl + Q.bk + Q.mx == 0) then return answer end
  if lease == '' then lease = c.vis else lease = tonumber(lease) end
  local bound = lease == -1
  local till = bound and 0 or now + lease
  local first = max(Q.num + 1, now * 1000)
  local grant = {number = first, till = S(till), delivered_ms = S(now), holder = bound and holder or '-',
    consumer = consumer, leases = {}, deadlines = {}, seqs = {}, answer = answer, again = 0}
  answer[1], answer[2], answer[3] = S(first), S(till), 1
  if Q.mx == 0 and Q.bk == 0 and Q.sk == 0 and not wanted and not c.fifo then receive_plain(Q, grant, limit) end
  if #grant.seqs < limit and Q.pl + Q.bk + Q.mx > 0 then
    local chosen, at
    if wanted then chosen, at = select_messages(Q, wanted, limit), 0 end
    while #grant.seqs < limit do
      local seq, sent, rec, x
      if chosen then
        at = at + 1
        if not chosen[at] then break end
        seq, sent, rec, x = unpack(chosen[at], 1, 4)
      else
        seq, sent, rec, x = pop(Q)
      end
      if not seq then break end
      local key = c.kl and x and group_of(x) or '-'
      if c.kl then limits.start(Q, key, true) end
      local before = #grant.seqs
      if not rec or (x and x.X) then
        Q.by = Q.by - size_of(rec)
        damage.set_aside(Q, seq, x, sent, rec)
        end_delivery(Q, seq, x or {})
      elseif is_expired(Q, x, sent) then
        Q.by = Q.by - size_of(rec)
        if c.dle then
          dead_letter(Q, seq, x, sent, rec, DEAD_EXPIRED, x and x.r, 'taken')
        else
          remove_message(Q, seq, x, sent, GONE_EXPIRED)
          end_delivery(Q, seq, x or {})
        end
      elseif x and c.maxr and (x.c or 0) >= c.maxr and (c.exd or (c.dl and x.K ~= version)) then
        Q.by = Q.by - size_of(rec)
        dead_letter(Q, seq, x, sent, rec, DEAD_RECEIVES, x.r, 'taken')
        if c.fifo and c.dl then
          -- It may return: until that is decided, later messages of its group must wait.
          groups.end_turn(Q)
        end
      else
        add_lease(Q, grant, seq, sent, rec, x, x and cjson.encode(x))
      end
      if c.kl and #grant.seqs == before then limits.refund_key(Q, key) end
    end
    groups.end_turn(Q)
  end
  if c.kl then call('ZREMRANGEBYSCORE', Q.p .. 'kt', '-inf', S(now * 1000)) end
  if #grant.seqs == 0 then return {} end
  flush_leases(Q, grant)
  limits.take(Q, #grant.seqs)
  answer[3] = grant.step or 1
  Q.num = grant.number - 1
  if bound then
    renew_holder(Q, holder, beat)
  else
    deadline(Q, till)
  end
  count(Q, 'delivered', #grant.seqs)
  if grant.again > 0 then count(Q, 'redelivered', grant.again) end
  event(Q, 'L', answer[1], answer[2], consumer, concat(grant.seqs, ','))
  return answer
end

-- As many messages as have about `most` bytes, by their mean size.
function limits.of_bytes(Q, limit, most)
  if not most or Q.by <= most then return limit end
  return min(limit, max(1, floor(most * waiting_count(Q) / Q.by)))
end

-- now, version of the topology, token or '', holder, its heartbeat, how long to watch the queue or '', then limit,
-- lease, consumer, selection, maximum in flight or '', maximum bytes or '' of each. A selection is '' or, as JSON, a
-- list of types or {seqs}. A queue that is to be watched and has less than that answers its next due time last.
local receive = up_to_date(function(Q, args)
  local answers, wanted = {}, {}
  for i = 7, #args, 6 do
    if args[i + 3] ~= '' then
      local given, names = cjson.decode(args[i + 3]), {}
      for _, each in ipairs(given.seqs or given) do names[given.seqs and S(each) or each] = true end
      wanted[i] = given.seqs and {seqs = names} or {types = names}
    end
  end
  local is_short = false
  for i = 7, #args, 6 do
    local limit = limits.of_bytes(Q, tonumber(args[i]), tonumber(args[i + 5]))
    local answer = receive_one(Q, limit, args[i + 1], args[i + 2], wanted[i], args[2], args[4], tonumber(args[5]),
      tonumber(args[i + 4]))
    answers[#answers + 1] = answer
    is_short = (#answer - 3) / 4 < limit
  end
  if args[3] ~= '' then
    -- Bound leases do not end by themselves: see `release_unanswered`.
    local seqs = {}
    for _, answer in ipairs(answers) do
      for i = 4, #answer, 4 do seqs[#seqs + 1] = sub(answer[i], 1, find(answer[i], '-', 1, true) - 1) end
    end
    remember(Q, args[3], seqs)
  end
  if args[6] ~= '' and is_short then
    Q.w = max(Q.w, Q.now + tonumber(args[6]))
    answers[#answers + 1] = S(Q.next)
  end
  return answers
end)

-- -- settling -------------------------------------------------------------------------------------

-- Ack messages of one run: 1 for each that was in flight, else nil.
local function ack_run(Q, number, seqs)
  local text = call('HGET', Q.p .. 'ru', number)
  if not text then return {} end
  local first, till, delivered_ms, left, bits, holder, consumer = match(text, RUN)
  till = tonumber(till)
  if till > 0 and till <= Q.now then return {} end
  local from, answers, n = tonumber(first) - 1, {}, 0
  local seen = {}
  for i = 1, #seqs do
    local at = tonumber(seqs[i]) - from
    if at >= 1 and not seen[at] and sub(bits, at, at) == '1' then
      seen[at] = true
      answers[i] = 1
      n = n + 1
    end
  end
  left = tonumber(left) - n
  Q.rc = Q.rc - n
  if left == 0 then
    end_run(Q, number, holder)
  elseif n > 0 then
    local digits = {byte(bits, 1, -1)}
    for at in pairs(seen) do digits[at] = 48 end
    call('HSET', Q.p .. 'ru', number, concat({first, S(till), delivered_ms, left, string.char(unpack(digits)), holder,
      consumer}, ' '))
  end
  return answers
end

-- now, token, then seq, number of each: 1, 'gone' or 'expired'
local function ack_all(Q, args)
  local p, now = Q.p, Q.now
  local answers, done, rest = {}, {}, {}
  if Q.rc > 0 then
    -- Consecutive receipts with one number belong to one run.
    local i = 3
    while i < #args do
      local number, seqs, start = args[i + 1], {}, i
      while i < #args and args[i + 1] == number do
        seqs[#seqs + 1] = args[i]
        i = i + 2
      end
      if tonumber(seqs[1]) <= Q.tr then split_run(Q, number) end  -- the history was trimmed past it: see below
      local found = ack_run(Q, number, seqs)
      for j = 1, #seqs do
        if found[j] then
          answers[(start - 1) / 2 + j - 1] = 1
          done[#done + 1] = seqs[j]
        else
          rest[#rest + 1] = (start - 1) / 2 + j - 1
        end
      end
    end
  else
    for i = 1, (#args - 2) / 2 do rest[i] = i end
  end
  local of_runs = #done
  local seen, ends, bound = {}, {}, nil
  local keeps = Q.c.hist > 0
  for from = 1, #rest, 1000 do
    local to = min(from + 999, #rest)
    local wanted = {}
    for i = from, to do wanted[#wanted + 1] = args[rest[i] * 2 + 1] end
    local found = call('HMGET', p .. 'o', unpack(wanted))
    for i = from, to do
      local place = rest[i]
      local seq, text = args[place * 2 + 1], found[i - from + 1]
      local space = text and find(text, ' ', 1, true)
      if not space or seen[seq] or sub(text, 1, space - 1) ~= args[place * 2 + 2] then
        answers[place] = seen[seq] and 'gone' or lost(Q, seq)
      else
        local till, sent, holder = match(text, SETTLED, space + 1)
        till = tonumber(till)
        if till > 0 and till <= now then
          answers[place] = lost(Q, seq)
        else
          seen[seq] = true
          done[#done + 1] = seq
          answers[place] = 1
          if holder ~= '-' then
            bound = bound or {}
            bound[#bound + 1] = {holder, seq}
          end
          if not keeps or tonumber(seq) <= Q.tr then ends[#ends + 1] = seq .. '-' .. sent end
        end
      end
    end
  end
  for from = of_runs + 1, #done, 1000 do
    local to = min(from + 999, #done)
    if Q.c.fifo or call('EXISTS', p .. 'x') == 1 then
      local extras = call('HMGET', p .. 'x', unpack(done, from, to))
      for i = from, to do
        local text = extras[i - from + 1]
        if text or Q.c.fifo then
          local x = text and damage.decode(text) or damage.replace(Q, done[i])
          forget_message(Q, done[i], x, 0)
          end_delivery(Q, done[i], x)
        end
      end
    end
    call('HDEL', p .. 'o', unpack(done, from, to))
    call('ZREM', p .. 'l', unpack(done, from, to))
  end
  for from = 1, #ends, 1000 do
    call('XDEL', p .. 'm', unpack(ends, from, min(from + 999, #ends)))
  end
  for _, each in ipairs(bound or {}) do call('SREM', p .. 'b:' .. each[1], each[2]) end
  if #done > 0 then
    if Q.c.lq then Q.wakes = true end
    count(Q, 'acked', #done)
    event(Q, 'A', concat(done, ','))
  end
  return answers, nil, #done == #answers and #done or answers
end

local ack = once(ack_all)

local late_receipts = {}  -- by receipts whose lease may have ended

late_receipts.ack = up_to_date(function(Q, args)
  local seq, number = args[2], args[3]
  local lease = lease_of(Q, seq)
  local done = 0
  if lease then
    if lease.number == number then
      local x = extra_of(Q, seq)
      end_lease(Q, seq, lease)
      forget_message(Q, seq, x, lease.sent)
      end_delivery(Q, seq, x or {})
      done = 1
    end
  else
    local state, x = state_of(Q, seq)
    if state and x and x.n and tonumber(number) > 0 and tonumber(number) <= (tonumber(x.n) or 0) then
      local rec, sent = record_of(Q, seq, x)
      leave_queue(Q, seq, x, rec)
      forget_message(Q, seq, x, sent)
      done = 1
    end
  end
  if done == 1 then
    count(Q, 'acked')
    event(Q, 'A', seq)
  end
  return done
end)

-- The answers of `act(seq, lease)` for the receipts from args[first] on; `?` and the reason if there is no such lease.
local function each_lease(Q, args, first, act)
  local answers = {}
  for i = first, #args, 2 do
    local seq = args[i]
    local lease = lease_of(Q, seq)
    answers[#answers + 1] = is_valid(Q, lease, args[i + 1]) and act(seq, lease) or '?' .. lost(Q, seq)
  end
  return answers
end

-- now, token, why, delay or '', reason or '', then seq, number of each
local back = once(function(Q, args)
  local why, delay = tonumber(args[3]), tonumber(args[4])
  local reason = args[5] ~= '' and args[5] or nil
  return each_lease(Q, args, 6, function(seq, lease)
    return return_delivery(Q, seq, lease, why, reason, delay)
  end)
end)

-- now, token, reason or '', then seq, number of each
local reject = once(function(Q, args)
  local reason = args[3] ~= '' and args[3] or nil
  return each_lease(Q, args, 4, function(seq, lease)
    local x = extra_of(Q, seq)
    local rec, sent = record_of(Q, seq, x)
    end_lease(Q, seq, lease)
    count(Q, 'nacked')
    if not rec or (x and x.X) then
      damage.set_aside(Q, seq, x, sent, rec)
      end_delivery(Q, seq, x or {})
      return 'removed'
    end
    x = x or published_extra(rec)
    x.c, x.n, x.f = lease.count, lease.number, x.f or lease.delivered_ms
    if reason then x.r = reason end
    return dead_letter(Q, seq, x, sent, rec, DEAD_REJECTED, reason, 'lent')
  end)
end)

-- Undo a receive whose answer was lost: its deliveries are released. now, token, holder
local release_unanswered = on_queue(function(Q, args)
  for _, seq in ipairs(earlier_answer(Q, args[2]) or {}) do
    local lease = lease_of(Q, seq)
    if lease and lease.holder == args[3] then return_delivery(Q, seq, lease, RELEASED, nil, 0) end
  end
  return 0
end)

-- Change the lease of a message in flight. `holder`: nil unless the lease is bound.
local function set_lease(Q, seq, lease, till, holder)
  end_lease(Q, seq, lease)
  call('HSET', Q.p .. 'o', seq, concat({lease.number, S(till), lease.count, S(lease.delivered_ms), S(lease.sent),
    holder or '-', lease.consumer}, ' '))
  if holder then
    call('SADD', Q.p .. 'b:' .. holder, seq)
  else
    call('ZADD', Q.p .. 'l', S(till), seq)
  end
end

-- now, lease, holder, its heartbeat, then seq, number of each: the new deadline, or why not
local extend = on_queue(function(Q, args)
  local span, holder, beat = tonumber(args[2]), args[3], tonumber(args[4])
  local till = span == -1 and 0 or Q.now + span
  local done = {}
  local answers = each_lease(Q, args, 5, function(seq, lease)
    set_lease(Q, seq, lease, till, span == -1 and holder or nil)
    if span == -1 then renew_holder(Q, holder, beat) else deadline(Q, till) end
    done[#done + 1] = seq
    return S(till)
  end)
  if #done > 0 then event(Q, 'X', S(till), concat(done, ',')) end
  return answers
end)

-- By the last receipt of a message, whose lease may have ended. now, seq, number, lease: the new deadline, or 0
late_receipts.extend = up_to_date(function(Q, args)
  local seq, number, till = args[2], args[3], Q.now + tonumber(args[4])
  local lease = lease_of(Q, seq)
  if lease then
    if lease.number ~= number then return '0' end
    set_lease(Q, seq, lease, till)
  else
    local state, x = state_of(Q, seq)
    if not state or not x or x.n ~= number then return '0' end
    if till == Q.now then return S(till) end  -- it is ready already
    local rec, sent = record_of(Q, seq, x)
    if not rec then return '0' end
    local g = group_of(x)
    local rule = limits.rule(Q, g)
    -- Another message may have its slot by now.
    if (rule and rule.c and limits.out(Q, g) >= rule.c)
        or (Q.c.lq and Q.c.lq.c and in_flight_count(Q) >= Q.c.lq.c) then
      return '0'
    end
    leave_queue(Q, seq, x, rec)
    limits.start(Q, g, false)
    if Q.c.fifo then
      groups.add_lease(Q, group_of(x), seq)
      update_ticket(Q, group_of(x))
    end
    lease = {number = number, count = x.c, delivered_ms = Q.now, sent = sent, consumer = '', holder = '-'}
    set_lease(Q, seq, lease, till)
  end
  deadline(Q, till)
  event(Q, 'X', S(till), seq)
  return S(till)
end)

-- A live server extends the leases that are bound to its connections. now, holder, its heartbeat
local hold = on_queue(function(Q, args)
  local held = call('EXISTS', Q.p .. 'b:' .. args[2])
  if held == 1 then renew_holder(Q, args[2], tonumber(args[3])) end
  advance(Q)  -- after the renewal, so that its leases do not expire here
  return held
end)
