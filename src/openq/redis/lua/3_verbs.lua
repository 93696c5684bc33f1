-- The verbs of consumers and operators.

-- -- in hand-out order ----------------------------------------------------------------------------

local function merged(Q, most)
  -- The plain lane: those that came back and those never handed out, by sequence.
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
      if byte(found[2][2], 1) % 2 == 0 and not (Q.sk > 0 and call('ZSCORE', p .. 'sk', S(seq))) then
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

-- The first `most` ready ones, as they would be handed out if every group were free. `all`: with those of
-- FIFO groups that are not due yet, in their places.
local function in_order(Q, most, all)
  local p, seqs = Q.p, {}
  if Q.c.fifo then
    -- Only the first of each group, and the next of one when that is taken.
    local firsts = {}
    local function step(each)
      each.at = each.at + 1
      each.seq = call('ZRANGE', p .. 'r:' .. each.g, each.at, each.at)[1]
      if not each.seq then return false end
      each.number = tonumber(each.seq)
      each.rank = rank_of(Q, extra_of(Q, each.seq) or {})
      return true
    end
    local function before(a, b)
      return a.rank > b.rank or (a.rank == b.rank and a.number < b.number)
    end
    local function sink(at)
      local each = firsts[at]
      while true do
        local child = at * 2
        if child > #firsts then break end
        if child < #firsts and before(firsts[child + 1], firsts[child]) then child = child + 1 end
        if not before(firsts[child], each) then break end
        firsts[at] = firsts[child]
        at = child
      end
      firsts[at] = each
    end
    -- Of very many groups those that stand longest: more would hold up everybody else.
    for _, g in ipairs(call('ZRANGE', p .. 'gs', 0, max(min(most, 20000), 2000) - 1)) do
      local each = {g = g, at = -1}
      if step(each) then firsts[#firsts + 1] = each end
    end
    for at = floor(#firsts / 2), 1, -1 do sink(at) end
    while #firsts > 0 and #seqs < most do
      local best = firsts[1]
      if all or not call('ZSCORE', p .. 'd', best.seq) then seqs[#seqs + 1] = best.seq end
      if not step(best) then
        firsts[1] = firsts[#firsts]
        firsts[#firsts] = nil
      end
      if #firsts > 0 then sink(1) end
    end
    return seqs
  end
  if Q.mx == 0 then return merged(Q, most) end
  local ranks = call('ZREVRANGE', p .. 'p', 0, -1)
  if ranks[#ranks] ~= '0' then ranks[#ranks + 1] = '0' end
  for _, rank in ipairs(ranks) do
    local lanes = {}
    for _, g in ipairs(call('LRANGE', p .. 't:' .. rank, 0, -1)) do
      local name = rank .. ':' .. g
      lanes[#lanes + 1] = name == PLAIN and merged(Q, most) or call('ZRANGE', p .. 'r:' .. name, 0, most - 1)
    end
    local turn, longest = 1, 0
    for _, lane in ipairs(lanes) do longest = max(longest, #lane) end
    while turn <= longest and #seqs < most do
      for _, lane in ipairs(lanes) do
        if lane[turn] then seqs[#seqs + 1] = lane[turn] end
      end
      turn = turn + 1
    end
  end
  return seqs
end

-- -- receive --------------------------------------------------------------------------------------

local function take_out(Q, seq, x)
  step_out(Q, seq, x)
  if Q.c.fifo then
    local g = group_of(x)
    call('HINCRBY', Q.p .. 'go', g, 1)
    Q.batch = Q.batch or {}
    Q.batch[g] = true
    offer(Q, g)
  end
end

-- Those of these types, in order; what is walked past stays. Looks at the first ten thousand only.
local function of_types(Q, types, limit)
  local found, held = {}, {}
  for _, seq in ipairs(in_order(Q, 10000, true)) do
    if #found == limit then break end
    local x = extra_of(Q, seq)
    local rec, sent = record_of(Q, seq, x)
    local known_x = x or light_of(rec)
    local g = group_of(known_x)
    local busy = Q.c.fifo and (held[g] or call('HEXISTS', Q.p .. 'go', g) == 1 or call('ZSCORE', Q.p .. 'd', seq))
    if not busy and known_x.t and types[known_x.t] then
      found[#found + 1] = {seq, sent, rec, x}
    else
      held[g] = true
    end
  end
  for _, each in ipairs(found) do take_out(Q, each[1], each[4]) end
  return found
end

-- Those that were never handed out. Neighbours are lent as one run.
local function receive_plain(Q, loan, limit)
  local stream, horizon = Q.p .. 'm', Q.now - Q.c.ret
  local answer, seqs, sents = loan.answer, {}, {}
  local n, to, size = 0, #answer, 0
  while limit > n and Q.pl > n do
    local wanted = min(limit - n, 500)
    local part = call('XRANGE', stream, format('%.0f', Q.cur + 1), '+', 'COUNT', wanted)
    local last
    for i = 1, #part do
      local found = part[i]
      local id, rec = found[1], found[2][2]
      local dash = find(id, '-', 1, true)
      local seq, flags = sub(id, 1, dash - 1), byte(rec, 1)
      if flags % 2 == 0 then
        local sent = sub(id, dash + 1)
        if tonumber(sent) <= horizon then
          limit = 0  -- the long way deals with it
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
      if limit > n then Q.pl = n end
      break
    end
  end
  Q.pl, Q.by = Q.pl - n, Q.by - size
  if n == 0 then return end
  loan.seqs = seqs
  local holder, till = loan.holder, loan.till
  -- Without gaps, and with nothing to follow by the long way.
  local whole = tonumber(seqs[n]) - tonumber(seqs[1]) == n - 1 and (limit == n or Q.pl == 0)
  if n > 1 and n <= 500 and whole and Q.c.hist > 0 then
    local number = S(loan.number)
    call('HSET', Q.p .. 'ru', number, concat({seqs[1], till, loan.lent, n, string.rep('1', n), holder,
      loan.consumer}, ' '))
    call('ZADD', Q.p .. 'rn', seqs[1], number)
    if holder == '-' then
      call('ZADD', Q.p .. 'l', till, 'L' .. number)
    else
      call('SADD', Q.p .. 'b:' .. holder, 'L' .. number)
    end
    Q.rc = Q.rc + n
    loan.number, loan.step = loan.number + 1, 0
    return
  end
  local terms = ' ' .. till .. ' 1 ' .. loan.lent .. ' '
  local who = ' ' .. holder .. ' ' .. loan.consumer
  for from = 1, n, 500 do
    local leases, deadlines, at = {}, {}, 0
    for i = from, min(from + 499, n) do
      local seq = seqs[i]
      leases[at + 1], leases[at + 2] = seq, format('%.0f', loan.number) .. terms .. sents[i] .. who
      deadlines[at + 1], deadlines[at + 2] = till, seq
      at = at + 2
      loan.number = loan.number + 1
    end
    call('HSET', Q.p .. 'o', unpack(leases))
    if holder == '-' then
      call('ZADD', Q.p .. 'l', unpack(deadlines))
    else
      call('SADD', Q.p .. 'b:' .. holder, unpack(seqs, from, min(from + 499, n)))
    end
  end
end

-- One call of many that came together: {first number, deadline, step from one number to the next, then id,
-- record, count, extra of each}.
local function receive_one(Q, limit, lease, consumer, types, version, holder, beat)
  local c, now = Q.c, Q.now
  local answer = {}
  if c.paused or limit < 1 or (Q.pl + Q.bk + Q.mx == 0) then return answer end
  if lease == '' then lease = c.vis else lease = tonumber(lease) end
  local bound = lease == -1
  local till = bound and 0 or now + lease
  local first = max(Q.num + 1, now * 1000)
  local loan = {number = first, till = S(till), lent = S(now), holder = bound and holder or '-',
    consumer = consumer, leases = {}, deadlines = {}, seqs = {}, answer = answer, again = 0}
  answer[1], answer[2], answer[3] = S(first), S(till), 1
  if Q.mx == 0 and Q.bk == 0 and Q.sk == 0 and not types and not c.fifo then receive_plain(Q, loan, limit) end
  if #loan.seqs < limit and Q.pl + Q.bk + Q.mx > 0 then
    local chosen, at
    if types then chosen, at = of_types(Q, types, limit), 0 end
    while #loan.seqs < limit do
      local seq, sent, rec, x
      if chosen then
        at = at + 1
        if not chosen[at] then break end
        seq, sent, rec, x = unpack(chosen[at], 1, 4)
      else
        seq, sent, rec, x = pop(Q)
      end
      if not seq then break end
      if not rec then
        -- Its record is gone from history by other hands: nothing to hand out.
        forget(Q, seq, x, 0)
        settle(Q, x or {})
      elseif is_over(Q, x, sent) then
        Q.by = Q.by - size_of(rec)
        if c.dle then
          bury(Q, seq, x, sent, rec, DEAD_EXPIRED, x and x.r, 'taken')
        else
          removed(Q, seq, x, sent, GONE_EXPIRED)
          settle(Q, x or {})
        end
      elseif x and c.maxr and (x.c or 0) >= c.maxr and (c.exd or (c.dl and x.K ~= version)) then
        Q.by = Q.by - size_of(rec)
        bury(Q, seq, x, sent, rec, DEAD_RECEIVES, x.r, 'taken')
        if c.fifo and c.dl then
          -- It may have to come back: until that is decided nothing of its group may overtake it.
          local g = group_of(x)
          Q.batch[g] = nil
          offer(Q, g)
        end
      else
        lend(Q, loan, seq, sent, rec, x, x and cjson.encode(x))
      end
    end
    end_batch(Q)
  end
  if #loan.seqs == 0 then return {} end
  flush_loan(Q, loan)
  answer[3] = loan.step or 1
  Q.num = loan.number - 1
  if bound then
    call('ZADD', Q.p .. 'hd', 'GT', S(now + beat), holder)
    deadline(Q, now + beat)
  else
    deadline(Q, till)
  end
  count(Q, 'delivered', #loan.seqs)
  if loan.again > 0 then count(Q, 'redelivered', loan.again) end
  event(Q, 'L', answer[1], answer[2], consumer, concat(loan.seqs, ','))
  return answer
end

-- now, version of the topology, token or '', holder, its heartbeat, then limit, lease, consumer, types of each
local function receive(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local answers, wanted = {}, {}
  for i = 6, #args, 4 do
    if args[i + 3] ~= '' then
      local types = {}
      for _, each in ipairs(cjson.decode(args[i + 3])) do types[each] = true end
      wanted[i] = types
    end
  end
  for i = 6, #args, 4 do
    answers[#answers + 1] = receive_one(Q, tonumber(args[i]), args[i + 1], args[i + 2], wanted[i], args[2],
      args[4], tonumber(args[5]))
  end
  if args[3] ~= '' then
    -- What is bound to its holder does not end by itself: see `forsake`.
    local lent = {}
    for _, answer in ipairs(answers) do
      for i = 4, #answer, 4 do lent[#lent + 1] = sub(answer[i], 1, find(answer[i], '-', 1, true) - 1) end
    end
    remember(Q, args[3], lent)
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, answers}
end

-- -- settling -------------------------------------------------------------------------------------

-- What a consumer is done with out of one run: 1 for each that was still out, else nil.
local function ack_run(Q, number, seqs)
  local text = call('HGET', Q.p .. 'ru', number)
  if not text then return {} end
  local first, till, lent, left, bits, holder, consumer = match(text, RUN)
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
    call('HSET', Q.p .. 'ru', number, concat({first, S(till), lent, left, string.char(unpack(digits)), holder,
      consumer}, ' '))
  end
  return answers
end

-- now, token, then seq, number of each: 1, 'gone' or 'expired'
local function ack(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  local before = answered(Q, args[2])
  if before then return {0, Q.now, before} end
  local p, now = Q.p, Q.now
  local answers, done, rest = {}, {}, {}
  if Q.rc > 0 then
    -- Neighbours with one number are of one run.
    local i = 3
    while i < #args do
      local number, seqs, start = args[i + 1], {}, i
      while i < #args and args[i + 1] == number do
        seqs[#seqs + 1] = args[i]
        i = i + 2
      end
      if tonumber(seqs[1]) <= Q.tr then break_up(Q, number) end  -- history has passed it: see below
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
      if not text or seen[seq] or sub(text, 1, space - 1) ~= args[place * 2 + 2] then
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
        if text then
          local x = cjson.decode(text)
          forget(Q, done[i], x, 0)
          settle(Q, x)
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
    count(Q, 'acked', #done)
    event(Q, 'A', concat(done, ','))
  end
  remember(Q, args[2], #done == #answers and #done or answers)
  save(Q)
  return {0, now, answers}
end

local function ack_late(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local seq, number = args[2], args[3]
  local lease = lease_of(Q, seq)
  local done = 0
  if lease then
    if lease.number == number then
      local x = extra_of(Q, seq)
      end_lease(Q, seq, lease)
      forget(Q, seq, x, lease.sent)
      settle(Q, x or {})
      done = 1
    end
  else
    local state, x = state_of(Q, seq)
    if state and x and x.n and tonumber(number) > 0 and tonumber(number) <= tonumber(x.n) then
      local rec, sent = record_of(Q, seq, x)
      Q.by = Q.by - size_of(rec)
      if state == 'delayed' then call('ZREM', Q.p .. 'd', seq) end
      if state == 'ready' or Q.c.fifo then step_out(Q, seq, x) end
      forget(Q, seq, x, sent)
      done = 1
    end
  end
  if done == 1 then
    count(Q, 'acked')
    event(Q, 'A', seq)
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, done}
end

-- now, token, why, delay or '', reason or '', then seq, number of each
local function back(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  local before = answered(Q, args[2])
  if before then return {1, Q.now, before} end
  local why, delay = tonumber(args[3]), tonumber(args[4])
  local reason = args[5] ~= '' and args[5] or nil
  local answers = {}
  for i = 6, #args, 2 do
    local seq = args[i]
    local lease = lease_of(Q, seq)
    if is_live(Q, lease, args[i + 1]) then
      answers[#answers + 1] = give_back(Q, seq, lease, why, reason, delay)
    else
      answers[#answers + 1] = '?' .. lost(Q, seq)
    end
  end
  remember(Q, args[2], answers)
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, answers}
end

-- now, token, reason or '', then seq, number of each
local function reject(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  local before = answered(Q, args[2])
  if before then return {1, Q.now, before} end
  local reason = args[3] ~= '' and args[3] or nil
  local answers = {}
  for i = 4, #args, 2 do
    local seq = args[i]
    local lease = lease_of(Q, seq)
    if is_live(Q, lease, args[i + 1]) then
      local x = extra_of(Q, seq)
      local rec, sent = record_of(Q, seq, x)
      x = x or light_of(rec)
      x.c, x.n, x.f = lease.count, lease.number, x.f or lease.lent
      if reason then x.r = reason end
      end_lease(Q, seq, lease)
      answers[#answers + 1] = bury(Q, seq, x, sent, rec, DEAD_REJECTED, reason, 'lent')
    else
      answers[#answers + 1] = '?' .. lost(Q, seq)
    end
  end
  remember(Q, args[2], answers)
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, answers}
end

-- A receive whose answer never came: what it lent goes back, as if it had not been. now, token, holder
local function forsake(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  for _, seq in ipairs(answered(Q, args[2]) or {}) do
    local lease = lease_of(Q, seq)
    if lease and lease.holder == args[3] then give_back(Q, seq, lease, RELEASED, nil, 0) end
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, 0}
end

-- now, lease, holder, its heartbeat, then seq, number of each: the new deadline, or why not
local function extend(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  local span, holder, beat = tonumber(args[2]), args[3], tonumber(args[4])
  local till = span == -1 and 0 or Q.now + span
  local answers, done = {}, {}
  for i = 5, #args, 2 do
    local seq = args[i]
    local lease = lease_of(Q, seq)
    if is_live(Q, lease, args[i + 1]) then
      end_lease(Q, seq, lease)
      local own = span == -1 and holder or '-'
      call('HSET', Q.p .. 'o', seq, concat({lease.number, S(till), lease.count, S(lease.lent), S(lease.sent),
        own, lease.consumer}, ' '))
      if span == -1 then
        call('SADD', Q.p .. 'b:' .. holder, seq)
        call('ZADD', Q.p .. 'hd', 'GT', S(Q.now + beat), holder)
        deadline(Q, Q.now + beat)
      else
        call('ZADD', Q.p .. 'l', S(till), seq)
        deadline(Q, till)
      end
      done[#done + 1] = seq
      answers[#answers + 1] = S(till)
    else
      answers[#answers + 1] = '?' .. lost(Q, seq)
    end
  end
  if #done > 0 then event(Q, 'X', S(till), concat(done, ',')) end
  save(Q)
  return {0, Q.now, answers}
end

-- A server that is alive says so for all that its connections hold. now, holder, its heartbeat
local function hold(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  local held = call('EXISTS', Q.p .. 'b:' .. args[2])
  if held == 1 then
    call('ZADD', Q.p .. 'hd', 'GT', S(Q.now + tonumber(args[3])), args[2])
    deadline(Q, Q.now + tonumber(args[3]))
  end
  advance(Q)  -- after it: what nobody has returned yet is still its own
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, held}
end

-- -- between queues -------------------------------------------------------------------------------

-- What is to be decided and moved, claimed for some seconds. now, claim ms, most
local function limbo(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  local p, answers = Q.p, {}
  local all = call('HKEYS', p .. 'ob')
  table.sort(all, function(a, b) return tonumber(a) < tonumber(b) end)
  for _, oid in ipairs(all) do
    if #answers >= tonumber(args[3]) * 2 then break end
    local claimed = tonumber(call('HGET', p .. 'oc', oid) or 0)
    if claimed <= Q.now then
      call('HSET', p .. 'oc', oid, S(Q.now + tonumber(args[2])))
      answers[#answers + 1] = oid
      answers[#answers + 1] = call('HGET', p .. 'ob', oid)
    end
  end
  Q.lb = #all
  save(Q)
  return {#all > 0 and 1 or 0, Q.now, answers}
end

local function limbo_meta(Q, oid)
  local text = call('HGET', Q.p .. 'ob', oid)
  if not text then return nil end
  local colon = find(text, ':', 1, true)
  local size = tonumber(sub(text, 1, colon - 1))
  return cjson.decode(sub(text, colon + 1, colon + size)), sub(text, colon + size + 1)
end

local function free_group(Q, meta)
  if meta.g then settle(Q, {g = meta.g ~= '-' and sub(meta.g, 2) or nil}) end
end

-- It is where it belongs, or gone. now, oid, outcome: moved | dead | removed, names of the targets, why gone
local function done(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  local meta = limbo_meta(Q, args[2])
  if meta then
    call('HDEL', Q.p .. 'ob', args[2])
    call('HDEL', Q.p .. 'oc', args[2])
    Q.lb = max(0, Q.lb - 1)
    local outcome = args[3]
    if meta.o ~= 'refused' and meta.w ~= ROUTED then
      if outcome == 'removed' then
        count(Q, 'removed')
        if meta.w == DEAD_EXPIRED then count(Q, 'expired') end
        event(Q, 'D', GONE[meta.w] or GONE_CANCELLED, meta.s)
      else
        count(Q, 'moved_out')
        if meta.w <= DEAD_OVERFLOW then count(Q, 'dead_lettered') end
        if meta.w == DEAD_EXPIRED then count(Q, 'expired') end
        event(Q, 'M', meta.w, meta.r or '', meta.s, args[4])
      end
    end
    free_group(Q, meta)
  end
  save(Q)
  return {0, Q.now, meta and 1 or 0}
end

-- There is nowhere for it to go: better kept. now, oid, version of the topology in which that was so
local function revive(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  local meta, rec = limbo_meta(Q, args[2])
  if meta then
    call('HDEL', Q.p .. 'ob', args[2])
    call('HDEL', Q.p .. 'oc', args[2])
    Q.lb = max(0, Q.lb - 1)
    local x, seq = meta.x, meta.s
    local why, delay = x.W, x.L
    x.W, x.L, x.K = nil, nil, args[3]
    -- History may have dropped its record in between.
    if #call('XRANGE', Q.p .. 'm', seq, seq) == 0 then
      x.E = 1
      if tonumber(seq) > Q.tr then
        rec = special(rec)
      end
      call('HSET', Q.p .. 'ed', seq, rec)
    end
    if x.E then call('HSET', Q.p .. 'ed', seq, rec) end
    if x.i then call('HSET', Q.p .. 'i', x.i, seq) end
    if x.u then call('HSET', Q.p .. 'u', x.u, seq) end
    if x.e then
      call('ZADD', Q.p .. 'e', S(x.e), seq)
      deadline(Q, x.e)
    end
    local wait = 0
    if meta.o == 'lent' then
      wait = delay or retry_delay(Q, seq, x.c or 1)
      count(Q, why == EXPIRED and 'lease_expired' or 'nacked')
      event(Q, 'R', why or NACKED, meta.r or '', seq, S(wait > 0 and Q.now + wait or 0))
    end
    stand_again(Q, seq, x, meta.m, rec, wait > 0 and Q.now + wait or 0)
    free_group(Q, meta)
  end
  save(Q)
  return {0, Q.now, meta and 1 or 0}
end

-- From another queue, once for each transfer. now, transfer, kind: moved | routed | refused, extra, record, origin, when it
-- was claimed: one who was frozen since then has to look again, it may be done and forgotten.
local function arrive(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  if Q.seq + 1 > Q.last then return failure('BLOCK') end
  advance(Q)
  local p = Q.p
  local seq = 0
  local x = cjson.decode(args[4])
  if Q.now - tonumber(args[7]) > CLAIM_MS then return failure('LATE') end
  if not call('ZSCORE', p .. 'in', args[2]) then
    call('ZADD', p .. 'in', S(Q.now), args[2])
    call('ZREMRANGEBYSCORE', p .. 'in', '-inf', S(Q.now - 2 * CLAIM_MS))
    if args[3] == 'routed' and repeats(Q, x) then
      -- Another one came between the question and this.
      count(Q, 'deduplicated')
      save(Q)
      return {Q.lb > 0 and 1 or 0, Q.now, 0}
    end
    settle_times(Q, x)
    local moved = args[3] == 'moved'
    seq = enter(Q, moved and from_elsewhere(args[5]) or args[5], x)
    count(Q, moved and 'moved_in' or 'published')
    if moved then event(Q, 'I', args[6], seq, x.i or '') end
    overflow(Q)
    trim(Q)
    trim_events(Q)
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, seq}
end

-- Would this message be taken? Nothing changes. now, size, extra: '', `=id` or `!why`
local function would(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  if Q.seq + 1 > Q.last then return failure('BLOCK') end
  advance(Q)
  local c, size = Q.c, tonumber(args[2])
  local answer = ''
  if c.mbody and size > c.mbody then
    answer = '!large ' .. S(size)
  else
    local x = cjson.decode(args[3])
    if c.dbc and not x.k then x.k = x.ck end
    answer = repeats(Q, x) or refusal(Q, size) or ''
    if sub(answer, 1, 1) == '=' then count(Q, 'deduplicated') end
    if sub(answer, 1, 1) == '!' and c.of == 'reject-dead-letter' and c.dl and args[4] then
      x.is, x.z, x.ck = nil, nil, nil
      bury_refused(Q, x, args[4])
    end
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, answer}
end

-- A message that goes to several queues is kept here until all have it. now, token, targets, extra, record
local function fan_out(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  local before = answered(Q, args[2])
  if before then return {1, Q.now, before} end
  if Q.seq + 1 > Q.last then return failure('BLOCK') end
  local x = cjson.decode(args[4])
  -- The id of all its copies is that of a sequence which no other message has.
  local id
  if not x.i then
    Q.seq = Q.seq + 1
    id = S(Q.seq)
  end
  local oid = to_limbo(Q, {s = id or '0', m = Q.now, w = ROUTED, x = x, to = cjson.decode(args[3]), o = 'routed'},
    args[5])
  local answer = {id or '', oid}
  remember(Q, args[2], answer)
  save(Q)
  return {1, Q.now, answer}
end

-- -- looking --------------------------------------------------------------------------------------

-- id, record, extra, state, lease of one message, appended to an answer.
local function show(Q, answer, seq, state, x)
  if state == 'in_flight' then lease_of(Q, seq) end  -- out of its run, if it is in one
  local found = call('XRANGE', Q.p .. 'm', seq, seq)[1]
  local text = call('HGET', Q.p .. 'x', seq)
  local rec, id
  if found then
    id, rec = found[1], found[2][2]
  end
  if text and find(text, '"E"', 1, true) then
    rec = call('HGET', Q.p .. 'ed', seq) or rec
    id = id or seq .. '-' .. S(Q.now)
  end
  if not rec then return end
  local at = #answer
  answer[at + 1], answer[at + 2], answer[at + 3] = id, rec, text or ''
  answer[at + 4] = state or ''
  answer[at + 5] = state == 'in_flight' and call('HGET', Q.p .. 'o', seq) or ''
end

local function by_number(seqs)
  table.sort(seqs, function(a, b) return tonumber(a) < tonumber(b) end)
  return seqs
end

-- now, state, most, after: how many of that state are passed over
local function browse(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local p, state, most, skip = Q.p, args[2], tonumber(args[3]), tonumber(args[4] or 0)
  local seqs
  if state == 'ready' then
    seqs = in_order(Q, most + skip)
  elseif state == 'delayed' then
    local pairs_ = call('ZRANGE', p .. 'd', 0, -1, 'WITHSCORES')
    local all = {}
    for i = 1, #pairs_, 2 do all[#all + 1] = {tonumber(pairs_[i + 1]), tonumber(pairs_[i]), pairs_[i]} end
    table.sort(all, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
    seqs = {}
    for i, each in ipairs(all) do seqs[i] = each[3] end
  else
    for _, run in ipairs(Q.rc > 0 and call('ZRANGE', p .. 'rn', 0, -1) or {}) do break_up(Q, run) end
    seqs = by_number(call('HKEYS', p .. 'o'))
  end
  local answer = {}
  for i = skip + 1, min(#seqs, skip + most) do show(Q, answer, seqs[i], state) end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, answer}
end

-- Ready ones by sequence, a page at a time: {last sequence looked at or '', how many wait if lanes take turns
-- (else 0), ...}.
-- now, after, most
local function survey(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local answer = {'', (Q.mx > 0 or Q.c.fifo) and Q.pl + Q.bk + Q.mx or 0}
  local part = call('XRANGE', Q.p .. 'm', S(tonumber(args[2]) + 1), '+', 'COUNT', tonumber(args[3]))
  for _, found in ipairs(part) do
    local seq = S(seq_of(found[1]))
    answer[1] = seq
    if state_of(Q, seq) == 'ready' then show(Q, answer, seq, 'ready') end
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, answer}
end

-- The last ones, last first. now, most
local function rear(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local most, answer = tonumber(args[2]), {}
  if Q.mx == 0 and Q.bk == 0 and Q.sk == 0 and not Q.c.fifo then
    local from, left = '+', min(most, Q.pl)
    while left > 0 do
      local part = call('XREVRANGE', Q.p .. 'm', from, S(Q.cur + 1), 'COUNT', left)
      if #part == 0 then break end
      for _, found in ipairs(part) do
        from = '(' .. found[1]
        if byte(found[2][2], 1) % 2 == 0 then
          show(Q, answer, S(seq_of(found[1])), 'ready')
          left = left - 1
        end
      end
    end
  else
    local seqs = in_order(Q, Q.pl + Q.bk + Q.mx)
    for i = #seqs, max(1, #seqs - most + 1), -1 do show(Q, answer, seqs[i], 'ready') end
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, answer}
end

-- now, then seqs; those that are not there are left out
local function look(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local answer = {}
  for i = 2, #args do
    local state = state_of(Q, args[i])
    if state then show(Q, answer, args[i], state) end
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, answer}
end

-- The sequence of each own id, or ''. now, then ids
local function seqs_of(keys, args)
  local answer = {}
  for i = 2, #args do
    answer[#answer + 1] = call('HGET', sub(keys[1], 1, -2) .. 'i', args[i]) or ''
  end
  return answer
end

-- How a message stands among others, for `why`. now, seq
local function standing(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local p, seq = Q.p, args[2]
  local state, x = state_of(Q, seq)
  local held, delayed, ahead = 0, 0, 0
  if state == 'ready' then
    if Q.c.fifo then
      local g = group_of(x)
      if call('HEXISTS', p .. 'go', g) == 1 then held = 1 end
      local first = call('ZRANGE', p .. 'r:' .. g, 0, 0)[1]
      if first and first ~= seq and call('ZSCORE', p .. 'd', first) then delayed = 1 end
    end
    for _, each in ipairs(in_order(Q, 10000)) do
      if each == seq then break end
      ahead = ahead + 1
    end
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, {state or '', held, delayed, ahead}}
end

local function stats(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local p = Q.p
  local delayed = call('ZCARD', p .. 'd')
  local ready = Q.pl + Q.bk + Q.mx - (Q.c.fifo and delayed or 0)
  local oldest
  local function older(seq)
    local found = seq and call('XRANGE', p .. 'm', seq, seq)[1]
    if found then
      local sent = sent_of(found[1])
      if not oldest or sent < oldest then oldest = sent end
    end
  end
  local id = tail(Q)
  if id then oldest = sent_of(id) end
  for _, lane in ipairs(Q.bk + Q.mx > 0 and lanes_of(Q) or {}) do older(call('ZRANGE', lane, 0, 0)[1]) end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, {ready, delayed, lent_count(Q), Q.by, oldest and S(oldest) or '',
    Q.next, call('HGETALL', p .. 'n')}}
end

-- What time brought about, and when it brings the next.
local function tick(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  if args[2] then Q.w = max(Q.w, Q.now + tonumber(args[2])) end  -- somebody waits, for so long
  local ready = Q.pl + Q.bk + Q.mx
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, {S(Q.next), ready, Q.c.v}}
end

-- -- mending --------------------------------------------------------------------------------------

-- Out of the waiting or delayed ones: state, extra, record, time sent; or nil and why not.
local function taken(Q, seq)
  local state, x = state_of(Q, seq)
  if not state then return nil, 'gone' end
  if state == 'in_flight' then return nil, 'lent' end
  local rec, sent = record_of(Q, seq, x)
  if not rec then return nil, 'gone' end
  Q.by = Q.by - size_of(rec)
  if state == 'delayed' then call('ZREM', Q.p .. 'd', seq) end
  if state == 'ready' or Q.c.fifo then step_out(Q, seq, x) end
  return state, x, rec, sent
end

-- now, then seqs
local function cancel(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local answers = {}
  for i = 2, #args do
    local state, x, rec, sent = taken(Q, args[i])
    if state then
      removed(Q, args[i], x, sent, GONE_CANCELLED)
      answers[i - 1] = 1
    else
      answers[i - 1] = x
    end
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, answers}
end

-- now, seq, record, type or ''
local function edit(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local seq, rec = args[2], special(args[3])
  local state, x = state_of(Q, seq)
  local answer = 1
  if not state then
    answer = 'gone'
  elseif state == 'in_flight' then
    answer = 'lent'
  else
    local old, sent = record_of(Q, seq, x)
    if not x then
      -- From the plain ones to the lane beside them: the record in the stream stays as it was published.
      step_out(Q, seq, nil)
      x = light_of(old)
      x.t = nil
      put_extra(Q, seq, x)
      stand(Q, seq, x)
    end
    x.E, x.b = 1, x.b or sent
    x.t = args[4] ~= '' and args[4] or nil
    put_extra(Q, seq, x)
    call('HSET', Q.p .. 'ed', seq, rec)
    Q.by = Q.by + size_of(rec) - size_of(old)
    event(Q, 'E', seq)
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, answer}
end

-- now, seq, due
local function reschedule(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local seq, due = args[2], tonumber(args[3])
  local state, x, rec, sent = taken(Q, seq)
  local answer = 1
  if state then
    stand_again(Q, seq, x or light_of(rec), sent, rec, due)
    event(Q, 'S', S(due), seq)
  else
    answer = x
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, answer}
end

-- To another queue, or back from the dead letters. now, why, target, then seqs: the transfer of each
local function send_on(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local why, answers = tonumber(args[2]), {}
  for i = 4, #args do
    local seq = args[i]
    local state, x, rec, sent = taken(Q, seq)
    if state then
      x = x or light_of(rec)
      forget(Q, seq, x, sent)
      answers[i - 3] = to_limbo(Q, {s = seq, m = sent, w = why, x = x, o = 'waiting', to = {args[3]}}, rec)
    else
      answers[i - 3] = '?' .. x
    end
  end
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, answers}
end

local function clear(Q, waiting_only)
  local p = Q.p
  local n = waiting_count(Q)
  if not waiting_only then n = n + lent_count(Q) end
  for _, rank in ipairs(call('ZRANGE', p .. 'p', 0, -1)) do
    for _, g in ipairs(call('LRANGE', p .. 't:' .. rank, 0, -1)) do call('DEL', p .. 'r:' .. rank .. ':' .. g) end
    call('DEL', p .. 't:' .. rank, p .. 'gz:' .. rank)
  end
  for _, g in ipairs(call('LRANGE', p .. 't:0', 0, -1)) do call('DEL', p .. 'r:0:' .. g) end
  for _, g in ipairs(call('ZRANGE', p .. 'gs', 0, -1)) do call('DEL', p .. 'r:' .. g) end
  call('DEL', p .. 't:0', p .. 'p', p .. 'gr', p .. 'gs', p .. 'd', p .. 'sk', p .. 'r:' .. PLAIN)
  if waiting_only then
    for _, seq in ipairs(call('HKEYS', p .. 'x')) do
      if call('HEXISTS', p .. 'o', seq) == 0 then
        local x = extra_of(Q, seq)
        x.d = nil
        local _, sent = record_of(Q, seq, x)
        forget(Q, seq, x, sent or 0)
      end
    end
  else
    for _, holder in ipairs(call('ZRANGE', p .. 'hd', 0, -1)) do call('DEL', p .. 'b:' .. holder) end
    Q.rc = 0
    call('DEL', p .. 'ru', p .. 'rn', p .. 'o', p .. 'l', p .. 'hd', p .. 'go', p .. 'x', p .. 'ed', p .. 'i', p .. 'u', p .. 'e')
  end
  local last = call('XREVRANGE', p .. 'm', '+', '-', 'COUNT', 1)[1]
  if last then Q.cur = seq_of(last[1]) end
  if Q.c.hist == 0 then
    -- No history: only the records of what is still with consumers stay.
    local kept = {}
    if waiting_only then
      for _, run in ipairs(call('ZRANGE', p .. 'rn', 0, -1)) do break_up(Q, run) end
      for _, seq in ipairs(by_number(call('HKEYS', p .. 'o'))) do
        kept[#kept + 1] = call('XRANGE', p .. 'm', seq, seq)[1]
      end
    end
    call('DEL', p .. 'm')
    for _, each in ipairs(kept) do call('XADD', p .. 'm', each[1], unpack(each[2])) end
  end
  Q.pl, Q.bk, Q.mx, Q.sk, Q.by, Q.ra = 0, 0, 0, 0, 0, 0
  return n
end

-- now, 1 if only what waits
local function purge(keys, args)
  local Q, failed = open(keys, args)
  if not Q then return failed end
  advance(Q)
  local n = clear(Q, args[2] == '1')
  count(Q, 'removed', n)
  event(Q, 'P', args[2])
  save(Q)
  return {Q.lb > 0 and 1 or 0, Q.now, n}
end

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
  call('DEL', Q.k, p .. 'oc', p .. 'm', p .. 'h', p .. 'n', p .. 'k', p .. 'kz', p .. 'in')
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
