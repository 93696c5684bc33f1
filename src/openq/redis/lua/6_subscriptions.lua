-- Batches of subscriptions: leases that were taken together, and the list of their messages.
--
--   sb  hash: subscription -> the latest term of its readers
--   sb:<subscription>  hash: number -> a batch, see BATCH
--   sp:<number>:<subscription>  sorted set: its receipts in delivery order, by the place of the first of each piece:
--       place, first seq, count, number of the first delivery, step from one number to the next
-- Long work is done in slices; a batch stores its progress. Callers get the result when all slices are done.

local batches = {}

do
  -- deadline, bytes, count, limit, limit of bytes or -1, is it complete, is it abandoned, place before which nothing is
  -- in flight, how many of these were acked with the batch
  local BATCH = '^(%d+) (%d+) (%d+) (%d+) (%-?%d+) (%d) (%d) (%d+) (%d+)$'
  local PIECE = '^(%d+) (%d+) (%d+) (%d+) (%d+)$'
  local RUN_MOST = 500  -- messages in one run
  local COST = 1000  -- plain leases in one call: Redis serves nobody else during it
  local COST_OF_READY_LISTS = 4  -- of a lease from the ready lists
  local COST_OF_RUN = 75  -- of extending a run, with its event
  local PAGE_BYTES = 1048576
  local WINDOW = 16  -- records read at once, whatever their size
  local LOOKS = 5000  -- leases that one call examines to find one in flight

  local function headers_key(Q, name)
    return Q.p .. 'sb:' .. name
  end

  local function pieces_key(Q, name, number)
    return Q.p .. 'sp:' .. number .. ':' .. name
  end

  local function load(Q, name, number)
    local text = call('HGET', headers_key(Q, name), number)
    if not text then return nil end
    local till, size, n, limit, room, whole, abandoned, settled, acked = match(text, BATCH)
    return {till = tonumber(till), size = tonumber(size), count = tonumber(n), limit = tonumber(limit),
      room = tonumber(room), whole = whole == '1', abandoned = abandoned == '1', settled = tonumber(settled),
      acked = tonumber(acked)}
  end

  local function store(Q, name, number, b)
    call('HSET', headers_key(Q, name), number, concat({S(b.till), S(b.size), S(b.count), S(b.limit), S(b.room),
      b.whole and 1 or 0, b.abandoned and 1 or 0, S(b.settled), S(b.acked)}, ' '))
  end

  local function drop_batch(Q, name, number)
    call('HDEL', headers_key(Q, name), number)
    call('DEL', pieces_key(Q, name, number))
  end

  local function numbers_of(Q, name)
    return by_number(call('HKEYS', headers_key(Q, name)))
  end

  -- Call `act(place, first, count, number, step)` for each piece of the receipts from place `from` up to `to`, cut to
  -- that range, until it returns true.
  local function each_piece(Q, name, number, from, to, act)
    local key = pieces_key(Q, name, number)
    local found = call('ZREVRANGEBYSCORE', key, S(from), '-inf', 'LIMIT', 0, 1)
    local at = 0
    while #found > 0 do
      for _, text in ipairs(found) do
        local place, first, n, delivery, step = match(text, PIECE)
        place, n, step = tonumber(place), tonumber(n), tonumber(step)
        local skip = max(0, from - place)
        local left = min(place + n, to) - place - skip
        at = place
        if left > 0 and act(place + skip, tonumber(first) + skip, left, tonumber(delivery) + step * skip, step) then
          return
        end
      end
      found = call('ZRANGEBYSCORE', key, '(' .. S(at), '(' .. S(to), 'LIMIT', 0, 500)
    end
  end

  local function is_of(lease, number)
    return lease and sub(lease, 1, find(lease, ' ', 1, true) - 1) == number
  end

  local function is_out(Q, seq, number)
    return is_of(call('HGET', Q.p .. 'o', seq), number)
  end

  -- The place of the first message in flight, or the count. Of very many settled ones only some are examined, and the
  -- next one counts as in flight: a later call continues there.
  local function first_out(Q, name, number, b)
    local found, looked = b.count, Q.looked or 0
    each_piece(Q, name, number, b.settled, b.count, function(place, first, n, delivery, step)
      if looked >= LOOKS or (step == 0 and call('HEXISTS', Q.p .. 'ru', S(delivery)) == 1)
          or is_out(Q, S(first), S(delivery)) then
        found = place
        return true
      end
      looked = looked + n
      local seqs = {}
      for i = 1, n do seqs[i] = S(first + i - 1) end
      for i, lease in ipairs(call('HMGET', Q.p .. 'o', unpack(seqs))) do
        if is_of(lease, S(delivery + step * (i - 1))) then
          found = place + i - 1
          return true
        end
      end
    end)
    Q.looked = looked
    return found
  end

  -- All leases of a batch end together; other ways to end them end the batch with the last one. A settled message
  -- does not return under its number, so it is examined once.
  local function is_open(Q, name, number, b)
    if b.till <= Q.now then return false end
    local place = first_out(Q, name, number, b)
    if place > b.settled then
      b.settled = place
      store(Q, name, number, b)
    end
    return place < b.count
  end

  -- Call `act(number, batch)` for each open batch; the others are dropped, if that is wanted.
  local function each_open(Q, name, drops_closed, act)
    for _, number in ipairs(numbers_of(Q, name)) do
      local b = load(Q, name, number)
      if is_open(Q, name, number, b) then
        act(number, b)
      elseif drops_closed then
        drop_batch(Q, name, number)
      end
    end
  end

  -- Number, deadline, bytes, count, 1 if abandoned of each open batch.
  local function listed(Q, name, drops_closed)
    local found = {}
    each_open(Q, name, drops_closed, function(number, b)
      local at = #found
      found[at + 1], found[at + 2], found[at + 3], found[at + 4] = number, S(b.till), S(b.size), S(b.count)
      found[at + 5] = b.abandoned and 1 or 0
    end)
    return found
  end

  -- A reader's calls carry its term. A reader that took over has a later one; from its first call on, calls of earlier
  -- terms are refused.
  local function late(Q, name, term)
    local known = tonumber(call('HGET', Q.p .. 'sb', name) or 0)
    if tonumber(term) < known then return failure('STALE', S(known)) end
    if tonumber(term) > known then call('HSET', Q.p .. 'sb', name, term) end
  end

  -- now, token or '', subscription, term of the reader: a call of an earlier term changes nothing.
  local function in_term(act)
    return function(Q, args)
      local refused = late(Q, args[3], args[4])
      if refused then return nil, refused end
      advance(Q)
      return act(Q, args[3], args)
    end
  end

  -- -- forming ------------------------------------------------------------------------------------

  -- How many of the next `most` messages fit the room (the first one always fits), and how many others were examined.
  local function fitting(Q, most, room, is_first)
    if Q.by <= room then return most, 0 end
    local fits, others = 0, 0
    local function takes(rec)
      room = room - size_of(rec)
      if room < 0 and not (is_first and fits == 0) then return false end
      fits = fits + 1
      return true
    end
    if Q.mx == 0 and Q.bk == 0 and Q.sk == 0 and not Q.c.fifo then
      local from, waiting = Q.cur + 1, min(most, Q.pl)
      while fits < waiting and others < COST do
        local part = call('XRANGE', Q.p .. 'm', S(from), '+', 'COUNT', min(waiting - fits, WINDOW))
        if #part == 0 then break end
        for _, found in ipairs(part) do
          if (byte(found[2][2], 1) or 0) % 2 == 1 then
            others = others + 1
          elseif not takes(found[2][2]) then
            return fits, others
          end
          from = seq_of(found[1]) + 1
          -- Entries before the first ready one are history: skip them from now on.
          if fits == 0 then Q.cur = from - 1 end
        end
      end
      -- If none was found yet, the first one is further on.
      return is_first and max(fits, 1) or fits, others
    end
    for _, seq in ipairs(in_order(Q, most, false, true)) do
      if fits == most then break end  -- ready lists that take turns return a few more
      local rec = record_of(Q, seq, extra_of(Q, seq))
      if rec and not takes(rec) then break end
    end
    return fits, others
  end

  -- Append the deliveries of `receive_one` as pieces.
  local function add(Q, key, b, answer)
    local delivery, step = tonumber(answer[1]), answer[3]
    local members, first, from, n = {}, nil, nil, 0
    local function close()
      if n == 0 then return end
      members[#members + 1] = S(b.count)
      members[#members + 1] = concat({S(b.count), S(first), n, S(from), step}, ' ')
      b.count = b.count + n
      n = 0
    end
    for i = 4, #answer, 4 do
      local seq = seq_of(answer[i])
      if n > 0 and seq ~= first + n then close() end
      if n == 0 then first, from = seq, delivery end
      n = n + 1
      delivery = delivery + step
      b.size = b.size + size_of(answer[i + 1])
    end
    close()
    for at = 1, #members, 1000 do call('ZADD', key, unpack(members, at, min(at + 999, #members))) end
  end

  -- One slice of a batch: {deadline, bytes, count, 1 if it is complete}; nothing if no message is ready, or if a batch
  -- that was begun has ended; {number of open batches} if that is too many for a new one.
  -- now, '', subscription, term, number, limit, limit of bytes or -1, lease, consumer, version of the topology,
  -- 1 if this caller has begun it, how many may be open
  batches.form = on_queue(in_term(function(Q, name, args)
    local number, there = args[5], 0
    each_open(Q, name, true, function(each, b)
      there = there + 1
      -- Numbers of a reader that counted differently: this reader never reaches them.
      local abandoned = tonumber(each) > tonumber(number)
      if b.abandoned ~= abandoned then
        b.abandoned = abandoned
        store(Q, name, each, b)
      end
    end)
    local b, lease = load(Q, name, number), tonumber(args[8])
    if b then
      -- The rest of the lease is for extending it.
      b.whole = b.whole or (b.till - Q.now) * 2 < lease
    else
      if args[11] == '1' then return {} end
      if there >= tonumber(args[12]) then return {S(there)} end
      b = {till = Q.now + lease, size = 0, count = 0, limit = tonumber(args[6]), room = tonumber(args[7]),
        settled = 0, acked = 0}
    end
    local key, cost = pieces_key(Q, name, number), 0
    while not b.whole and cost < COST do
      local wanted, others = min(b.limit - b.count, RUN_MOST), 0
      if b.room >= 0 then wanted, others = fitting(Q, wanted, b.room - b.size, b.count == 0) end
      local before = b.count
      if wanted > 0 then
        add(Q, key, b, receive_one(Q, wanted, S(b.till - Q.now), args[9], nil, args[10], '-', 0))
      end
      cost = cost + others + wanted * ((Q.c.fifo or Q.mx > 0) and COST_OF_READY_LISTS or 1)
      -- After very many others the next slice continues.
      b.whole = (wanted == 0 and others < COST) or b.count - before < wanted or b.count == b.limit
    end
    if b.count == 0 then return {} end
    store(Q, name, number, b)
    return {S(b.till), S(b.size), S(b.count), b.whole and 1 or 0}
  end))

  -- -- reading ------------------------------------------------------------------------------------

  -- The open batches of each subscription. now, then subscriptions
  batches.open = up_to_date(function(Q, args)
    local answers = {}
    for i = 2, #args do answers[i - 1] = listed(Q, args[i], false) end
    return answers
  end)

  -- The numbers of a subscription's batches, including ended ones that are not dropped yet. now, subscription
  batches.numbers = up_to_date(function(Q, args)
    return numbers_of(Q, args[2])
  end)

  -- The open batches for a reader; ended ones are dropped. now, '', subscription, term
  batches.tidy = on_queue(in_term(function(Q, name)
    return listed(Q, name, true)
  end))

  -- A page of rows: {deadline, place of the next one, then id, record, options, number, time of delivery, count of each
  -- message in flight}; nothing if the batch has ended. now, subscription, number, first place, end
  batches.rows = up_to_date(function(Q, args)
    local p, name, number = Q.p, args[2], args[3]
    local b = load(Q, name, number)
    if not b or not is_open(Q, name, number, b) then return {} end
    local answer, size, cost = {S(b.till), ''}, 0, 0
    local next_place = tonumber(args[5])
    local function put(id, rec, extra, delivery, delivered_ms, n)
      local at = #answer
      answer[at + 1], answer[at + 2], answer[at + 3] = id, rec, extra
      answer[at + 4], answer[at + 5], answer[at + 6] = delivery, delivered_ms, n
      size = size + #rec
    end
    local function is_enough(place)
      if size < PAGE_BYTES and cost < COST then return false end
      next_place = place
      return true
    end
    each_piece(Q, name, number, tonumber(args[4]), next_place, function(place, first, n, delivery, step)
      local run = step == 0 and call('HGET', p .. 'ru', S(delivery))
      if run then
        local start, _, delivered_ms, _, bits = match(run, RUN)
        for from = first, first + n - 1, WINDOW do
          if is_enough(place + from - first) then return true end
          local to = min(from + WINDOW, first + n) - 1
          local records = {}
          for _, found in ipairs(call('XRANGE', p .. 'm', S(from), S(to))) do records[seq_of(found[1])] = found end
          for seq = from, to do
            local at, found = seq - tonumber(start) + 1, records[seq] or {S(seq) .. '-0', {'m', ''}}
            if sub(bits, at, at) == '1' then put(found[1], found[2][2], '', S(delivery), delivered_ms, 1) end
          end
          cost = cost + to - from + 1
        end
        return false
      end
      for i = 0, n - 1 do
        if is_enough(place + i) then return true end
        local seq, own = S(first + i), S(delivery + step * i)
        if is_out(Q, seq, own) then
          local lease, x = lease_of(Q, seq), extra_of(Q, seq)
          local rec, sent = record_of(Q, seq, x)
          put(seq .. '-' .. S(sent or 0), rec or '', x and cjson.encode(x) or '', own, S(lease.delivered_ms), lease.count)
        end
        cost = cost + 1
      end
    end)
    answer[2] = S(next_place)
    return answer
  end)

  -- -- extending and ending -------------------------------------------------------------------------

  local function extend_run(Q, delivery, till)
    local first, _, delivered_ms, left, bits, holder, consumer = match(call('HGET', Q.p .. 'ru', delivery), RUN)
    call('HSET', Q.p .. 'ru', delivery, concat({first, S(till), delivered_ms, left, bits, holder, consumer}, ' '))
    call('ZADD', Q.p .. 'l', S(till), 'L' .. delivery)
    local seqs = {}
    for i = 1, #bits do
      if byte(bits, i) == 49 then seqs[#seqs + 1] = S(tonumber(first) + i - 1) end
    end
    return seqs
  end

  -- Extend one slice of the leases: {deadline, place of the next one}; nothing if it is too late: some have returned
  -- already, and all must end together. now, '', subscription, term, number, lease, deadline if known or 0, place
  batches.extend = on_queue(in_term(function(Q, name, args)
    local number, from = args[5], tonumber(args[8])
    local b = load(Q, name, number)
    if not b or b.till <= Q.now then return {} end
    local till = tonumber(args[7])
    if till == 0 then till = Q.now + tonumber(args[6]) end
    local cost, next_place = 0, b.count
    each_piece(Q, name, number, from, b.count, function(place, first, n, delivery, step)
      if cost >= COST then
        next_place = place
        return true
      end
      local seqs = {}
      if step == 0 and call('HEXISTS', Q.p .. 'ru', S(delivery)) == 1 then
        seqs = extend_run(Q, S(delivery), till)
        cost = cost + COST_OF_RUN
      else
        for i = 0, n - 1 do
          local seq = S(first + i)
          if is_out(Q, seq, S(delivery + step * i)) then
            set_lease(Q, seq, lease_of(Q, seq), till)
            seqs[#seqs + 1] = seq
          end
        end
        cost = cost + n
      end
      if #seqs > 0 then event(Q, 'X', S(till), concat(seqs, ',')) end
    end)
    deadline(Q, till)
    if next_place == b.count then
      b.till = till
      store(Q, name, number, b)
    end
    return {S(till), S(next_place)}
  end))

  -- End one slice: {messages ended and messages lost before in the batches that are done; 1 if there is more}.
  -- `act(flat)` ends the receipts (seq, number of each, from the third item on) and returns how many it ended.
  local function end_batches(Q, name, through, most, act)
    local ended, gone, cost = 0, 0, 0
    for _, number in ipairs(numbers_of(Q, name)) do
      if tonumber(number) > through then break end
      local b = load(Q, name, number)
      if b.till <= Q.now then b.settled = b.count end
      while b.settled < b.count do
        if cost >= most then
          store(Q, name, number, b)
          return {ended, gone, 1}
        end
        local to = min(b.settled + most - cost, b.count)
        local flat = {'', ''}
        each_piece(Q, name, number, b.settled, to, function(_, first, n, delivery, step)
          for i = 0, n - 1 do
            flat[#flat + 1] = S(first + i)
            flat[#flat + 1] = S(delivery + step * i)
          end
        end)
        b.acked = b.acked + act(flat)
        cost = cost + to - b.settled
        b.settled = to
      end
      ended, gone = ended + b.acked, gone + b.count - b.acked
      drop_batch(Q, name, number)
    end
    return {ended, gone, 0}
  end

  -- now, token, subscription, term, last batch
  batches.ack = once(in_term(function(Q, name, args)
    return end_batches(Q, name, tonumber(args[5]), COST, function(flat)
      local n = 0
      for _, answer in ipairs(ack_all(Q, flat)) do
        if answer == 1 then n = n + 1 end
      end
      return n
    end)
  end))

  -- Return all batches to the queue. now, token, subscription, term, reason
  batches.give_back = once(in_term(function(Q, name, args)
    local answer = end_batches(Q, name, FAR, COST / 4, function(flat)
      local n = 0
      for _, outcome in ipairs(each_lease(Q, flat, 3, function(seq, lease)
        return return_delivery(Q, seq, lease, NACKED, args[5], 0)
      end)) do
        if sub(outcome, 1, 1) ~= '?' then n = n + 1 end
      end
      return n
    end)
    if answer[3] == 0 then call('HDEL', Q.p .. 'sb', name) end
    return answer
  end))

  -- The queue is deleted.
  batches.forget = function(Q)
    for _, name in ipairs(call('HKEYS', Q.p .. 'sb')) do
      for _, number in ipairs(call('HKEYS', headers_key(Q, name))) do drop_batch(Q, name, number) end
    end
    call('DEL', Q.p .. 'sb')
  end
end
