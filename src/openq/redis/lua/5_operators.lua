-- Moves between queues; inspecting and changing messages.

-- -- between queues -------------------------------------------------------------------------------

local function by_number(seqs)
  table.sort(seqs, function(a, b) return tonumber(a) < tonumber(b) end)
  return seqs
end

-- Claim entries of the outbox for some seconds. now, claim ms, most, client: number and entry of each
local claim_outbox = on_queue(function(Q, args)
  local p, answers = Q.p, {}
  local all = call('HKEYS', p .. 'ob')
  for _, oid in ipairs(by_number(all)) do
    if #answers >= tonumber(args[3]) * 2 then break end
    local till, client = match(call('HGET', p .. 'oc', oid) or '0 ', '^(%d+) (.*)$')
    if tonumber(till) <= Q.now or client == args[4] then
      call('HSET', p .. 'oc', oid, S(Q.now + tonumber(args[2])) .. ' ' .. args[4])
      answers[#answers + 1] = oid
      answers[#answers + 1] = call('HGET', p .. 'ob', oid)
    end
  end
  Q.lb = #all
  return answers
end)

-- Remove an outbox entry: its metadata and record; nil if another client did so first.
local function take_from_outbox(Q, oid)
  local text = call('HGET', Q.p .. 'ob', oid)
  if not text then return nil end
  call('HDEL', Q.p .. 'ob', oid)
  call('HDEL', Q.p .. 'oc', oid)
  Q.lb = max(0, Q.lb - 1)
  local colon = find(text, ':', 1, true)
  local size = tonumber(sub(text, 1, colon - 1))
  return cjson.decode(sub(text, colon + 1, colon + size)), sub(text, colon + size + 1)
end

local function release_group(Q, meta)
  if meta.g then end_delivery(Q, meta.s, {g = meta.g ~= '-' and sub(meta.g, 2) or nil}) end
end

-- A move is done. now, number, outcome: moved | removed, names of the targets
local done = on_queue(function(Q, args)
  local meta = take_from_outbox(Q, args[2])
  if not meta then return 0 end
  if meta.o ~= 'refused' and meta.w ~= ROUTED then
    if meta.w == DEAD_EXPIRED then count(Q, 'expired') end
    if args[3] == 'removed' then
      count(Q, 'removed')
      event(Q, 'D', GONE[meta.w] or GONE_CANCELLED, meta.s)
    else
      count(Q, 'moved_out')
      if meta.w <= DEAD_OVERFLOW then count(Q, 'dead_lettered') end
      event(Q, 'M', meta.w, meta.r or '', meta.s, args[4])
    end
  end
  release_group(Q, meta)
  return 1
end)

-- A message without a target returns to its queue. now, number, version of the topology in which that was so
local return_from_outbox = on_queue(function(Q, args)
  local meta, rec = take_from_outbox(Q, args[2])
  if not meta then return 0 end
  local x, seq = meta.x, meta.s
  local why, delay = x.W, x.L
  x.W, x.L, x.K = nil, nil, args[3]
  -- Its entry is gone from the stream, which takes no older ones: without a history at once, else when it was trimmed.
  if #call('XRANGE', Q.p .. 'm', seq, seq) == 0 then
    x.E, x.S = 1, meta.m
    call('ZADD', Q.p .. 'eo', seq, seq)
    if tonumber(seq) > Q.tr then rec = special(rec) end
  end
  if x.E then call('HSET', Q.p .. 'ed', seq, rec) end
  if x.i then call('HSET', Q.p .. 'i', x.i, seq) end
  if x.u then call('HSET', Q.p .. 'u', x.u, seq) end
  if x.e then
    call('ZADD', Q.p .. 'e', S(x.e), seq)
    deadline(Q, x.e)
  end
  local due = 0
  if meta.o == 'lent' then
    local wait = delay or retry_delay(Q, seq, x.c or 1, why)
    due = wait > 0 and Q.now + wait or 0
    event(Q, 'R', why or NACKED, meta.r or '', seq, S(due))
  end
  requeue(Q, seq, x, meta.m, rec, due)
  release_group(Q, meta)
  return 1
end)

-- Enter a message from another queue, once for each outbox entry. now, entry, kind: moved | routed | refused,
-- options, record, origin, time of the claim: a late client must claim it again, it may be done already.
local arrive = on_queue(function(Q, args)
  if Q.seq + 1 > Q.last then return nil, failure('BLOCK') end
  advance(Q)
  local p = Q.p
  local seq = 0
  local x = cjson.decode(args[4])
  if Q.now - tonumber(args[7]) > CLAIM_MS then return nil, failure('LATE') end
  if not call('ZSCORE', p .. 'in', args[2]) then
    call('ZADD', p .. 'in', S(Q.now), args[2])
    call('ZREMRANGEBYSCORE', p .. 'in', '-inf', S(Q.now - 2 * CLAIM_MS))
    if args[3] == 'routed' and duplicate_of(Q, x) then
      -- An equal message was published since `would`.
      count(Q, 'deduplicated')
      return 0
    end
    settle_times(Q, x)
    local moved = args[3] == 'moved'
    seq = enter(Q, moved and from_elsewhere(args[5]) or args[5], x)
    count(Q, moved and 'moved_in' or 'published')
    if moved then event(Q, 'I', args[6], seq, x.i or '') else readers.published(Q, seq, x.i) end
    overflow(Q)
    trim(Q)
    trim_events(Q)
  end
  return seq
end)

-- Would this message be accepted? '', `=id` or `!why`; a refused one may be dead-lettered. now, size, options, record
local check_publish = on_queue(function(Q, args)
  if Q.seq + 1 > Q.last then return nil, failure('BLOCK') end
  advance(Q)
  local c, size = Q.c, tonumber(args[2])
  local answer = ''
  if c.mbody and size > c.mbody then
    answer = '!large ' .. S(size)
  else
    local x = cjson.decode(args[3])
    if c.dbc and not x.k then x.k = x.ck end
    answer = duplicate_of(Q, x) or overflow_error(Q, size) or ''
    if sub(answer, 1, 1) == '=' then count(Q, 'deduplicated') end
    if sub(answer, 1, 1) == '!' and c.of == 'reject-dead-letter' and c.dl and args[4] then
      x.is, x.z, x.ck = nil, nil, nil
      dead_letter_refused(Q, x, args[4])
    end
  end
  return answer
end)

-- Put a message for several queues into the outbox. now, token, targets, options, record
local fan_out = once(function(Q, args)
  if Q.seq + 1 > Q.last then return nil, failure('BLOCK') end
  local x = cjson.decode(args[4])
  -- Its copies share one id, which follows from an unused sequence.
  local id
  if not x.i then
    Q.seq = Q.seq + 1
    id = S(Q.seq)
  end
  local oid = to_outbox(Q, {s = id or '0', m = Q.now, w = ROUTED, x = x, to = cjson.decode(args[3]), o = 'routed'},
    args[5])
  return {id or '', oid}
end)

-- -- inspecting --------------------------------------------------------------------------------------

-- Append id, record, options, state and lease of a message to an answer.
local function append_row(Q, answer, seq, state)
  if state == 'in_flight' then lease_of(Q, seq) end  -- splits its run, if it is in one
  local found = call('XRANGE', Q.p .. 'm', seq, seq)[1]
  local text = call('HGET', Q.p .. 'x', seq)
  local rec, id
  if found then
    id, rec = found[1], found[2][2]
  end
  if text and find(text, '"E"', 1, true) then
    rec = call('HGET', Q.p .. 'ed', seq) or rec
    local x = damage.decode(text) or {}
    id = id or seq .. '-' .. S(x.S or x.b or Q.now)
  end
  -- A damaged record is returned as it is: the client reports it.
  if not rec then id, rec = seq .. '-0', '' end
  if text and not damage.decode(text) then text = cjson.encode(damage.replace(Q, seq)) end
  local at = #answer
  answer[at + 1], answer[at + 2], answer[at + 3] = id, rec, text or ''
  answer[at + 4] = state or ''
  answer[at + 5] = state == 'in_flight' and call('HGET', Q.p .. 'o', seq) or ''
end

-- Listings of one state, page by page.
local browse = {DIGITS = 16}

-- The first rank in [from, till) of a sorted set whose member does not sort before `text`.
function browse.rank_of(key, text, from, till)
  while from < till do
    local middle = floor((from + till) / 2)
    if call('ZRANGE', key, middle, middle)[1] < text then from = middle + 1 else till = middle end
  end
  return from
end

-- Appends the members of one score that come after `seq`, by number, until `seqs` holds `most`. Returns the number
-- up to which all were seen, or nil when the score has no more. Redis sorts the members of one score as texts:
-- there the numbers of one length are in order, with numbers of other lengths between them. Many messages may be
-- due in the same millisecond, so one call reads a limited part of them.
function browse.ties(key, score, seq, most, seqs)
  local from = call('ZCOUNT', key, '-inf', '(' .. score)
  local till = from + call('ZCOUNT', key, score, score)
  local left = 10 * most
  for digits = #S(seq + 1), browse.DIGITS do
    local at = browse.rank_of(key, S(max(seq + 1, 10 ^ (digits - 1))), from, till)
    while at < till do
      local part = call('ZRANGE', key, at, min(at + most, till) - 1)
      for _, each in ipairs(part) do
        if #each == digits then
          seqs[#seqs + 1] = each
          if #seqs == most then return tonumber(each) end
        end
      end
      -- Every number of this length up to this one sorts before the last member read.
      local last = part[#part]
      if #last < digits then
        seq = tonumber(last) * 10 ^ (digits - #last) - 1
      else
        seq = tonumber(sub(last, 1, digits))
      end
      left = left - #part
      if left <= 0 then return seq end
      if #S(seq + 1) > digits then break end
      at = browse.rank_of(key, S(seq + 1), at + #part, till)
    end
  end
end

-- Delayed messages by due time and sequence: {due time, sequence, ...}, after which the next page begins; both are ''
-- after the last page. A page may be empty before that. Messages that leave between two pages shift nothing.
-- now, most, due time, sequence
browse.delayed = up_to_date(function(Q, args)
  local key, most, due, seq = Q.p .. 'd', tonumber(args[2]), args[3], tonumber(args[4])
  local seqs = {}
  local seen = browse.ties(key, due, seq, most, seqs)
  while not seen do
    local part = call('ZRANGEBYSCORE', key, '(' .. due, '+inf', 'WITHSCORES', 'LIMIT', 0, most - #seqs)
    if #part == 0 then break end
    due = part[#part]
    -- The last due time may have more members than were read here: `ties` reads them.
    local rows = {}
    for i = 1, #part, 2 do
      if part[i + 1] ~= due then rows[#rows + 1] = {tonumber(part[i + 1]), tonumber(part[i]), part[i]} end
    end
    table.sort(rows, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
    for _, row in ipairs(rows) do seqs[#seqs + 1] = row[3] end
    seen = browse.ties(key, due, 0, most, seqs)
  end
  local answer = seen and {due, S(seen)} or {'', ''}
  for _, each in ipairs(seqs) do append_row(Q, answer, each, 'delayed') end
  return answer
end)

-- The sequences of all messages in flight, unordered; their runs are split.
function browse.leased(Q)
  for _, run in ipairs(Q.rc > 0 and call('ZRANGE', Q.p .. 'rn', 0, -1) or {}) do split_run(Q, run) end
  return call('HKEYS', Q.p .. 'o')
end

browse.in_flight = up_to_date(browse.leased)

-- The first messages, ready or in flight. now, state, most
browse.first = up_to_date(function(Q, args)
  local state, most = args[2], tonumber(args[3])
  local seqs = state == 'ready' and in_order(Q, most) or by_number(browse.leased(Q))
  local answer = {}
  for i = 1, min(#seqs, most) do append_row(Q, answer, seqs[i], state) end
  return answer
end)

-- The sequences of the first ready messages in order, and of all that were edited, each as one text. now
browse.ready_seqs = up_to_date(function(Q)
  return {concat(in_order(Q, 10000, true), ' '), concat(call('HKEYS', Q.p .. 'ed'), ' ')}
end)

-- A page of ready messages by sequence: {last sequence examined or '', number of ready messages if ready lists take turns
-- (else 0), ...}.
-- now, after, most
local scan_ready = up_to_date(function(Q, args)
  local answer = {'', (Q.mx > 0 or Q.c.fifo) and Q.pl + Q.bk + Q.mx or 0}
  local after, most, seqs = S(tonumber(args[2]) + 1), tonumber(args[3]), {}
  for i, found in ipairs(call('XRANGE', Q.p .. 'm', after, '+', 'COUNT', most)) do seqs[i] = seq_of(found[1]) end
  -- Those without an entry in the stream.
  local to = seqs[most] and S(seqs[most]) or '+inf'
  for _, seq in ipairs(call('ZRANGEBYSCORE', Q.p .. 'eo', after, to, 'LIMIT', 0, most)) do
    seqs[#seqs + 1] = tonumber(seq)
  end
  table.sort(seqs)
  for i = 1, min(#seqs, most) do
    local seq = S(seqs[i])
    answer[1] = seq
    if state_of(Q, seq) == 'ready' then append_row(Q, answer, seq, 'ready') end
  end
  return answer
end)

-- The last ready messages, last first. now, most
local rear = up_to_date(function(Q, args)
  local most, answer = tonumber(args[2]), {}
  if Q.mx == 0 and Q.bk == 0 and Q.sk == 0 and not Q.c.fifo then
    local from, left = '+', min(most, Q.pl)
    while left > 0 do
      local part = call('XREVRANGE', Q.p .. 'm', from, S(Q.cur + 1), 'COUNT', left)
      if #part == 0 then break end
      for _, found in ipairs(part) do
        from = '(' .. found[1]
        if (byte(found[2][2], 1) or 0) % 2 == 0 then
          append_row(Q, answer, S(seq_of(found[1])), 'ready')
          left = left - 1
        end
      end
    end
  else
    local seqs = in_order(Q, Q.pl + Q.bk + Q.mx)
    for i = #seqs, max(1, #seqs - most + 1), -1 do append_row(Q, answer, seqs[i], 'ready') end
  end
  return answer
end)

-- now, then seqs; missing ones are left out
local look = up_to_date(function(Q, args)
  local answer = {}
  for i = 2, #args do
    local state = state_of(Q, args[i])
    if state then append_row(Q, answer, args[i], state) end
  end
  return answer
end)

-- The sequence of each own id, or ''. now, then ids
local function seqs_of(keys, args)
  local answer = {}
  for i = 2, #args do
    answer[#answer + 1] = call('HGET', sub(keys[1], 1, -2) .. 'i', args[i]) or ''
  end
  return answer
end

-- The limit that holds a key: 'key' or 'queue', then the number in flight and its limit, or '' and the time of the next
-- token; empty if none does.
function limits.why(Q, g)
  local rules = {{'key', limits.rule(Q, g)}, {'queue', Q.c.lq}}
  for i = 1, 2 do
    local what, rule = rules[i][1], rules[i][2]
    if rule then
      local out = what == 'key' and limits.out(Q, g) or in_flight_count(Q)
      if rule.c and out >= rule.c then return {what, out, rule.c} end
      if rule.i then
        local n, due = limits.tokens(Q, rule, what == 'key' and limits.used(Q, g) or Q.qt)
        if n < 1 then return {what, '', S(due)} end
      end
    end
  end
  return {}
end

-- How many ready messages limits hold.
function limits.held(Q)
  local p, n = Q.p, 0
  if not Q.c.lim then return 0 end
  if limits.of_queue(Q) < 1 then return Q.pl + Q.bk + Q.mx end
  if Q.c.fifo then
    for _, g in ipairs(call('ZRANGE', p .. 'kb', 0, -1)) do n = n + call('ZCARD', p .. 'r:' .. g) end
    return n
  end
  for rank, list in pairs(limits.parked(Q) or {}) do
    for _, g in ipairs(list) do n = n + call('ZCARD', p .. 'r:' .. rank .. ':' .. g) end
  end
  return n
end

-- Whether a receive may get something. A waiter that gets nothing then must not try again at once.
function limits.may_deliver(Q)
  if Q.c.paused or (Q.c.lim and limits.of_queue(Q) < 1) then return false end
  if not Q.c.fifo and (not Q.c.kl or Q.mx == 0 or has_plain(Q)) then return true end
  for _, rank in ipairs(limits.ranks(Q)) do
    if call('EXISTS', Q.p .. (Q.c.fifo and 'gz:' or 't:') .. rank) == 1 then return true end
  end
  return false
end

-- The position of a message among others, for `why`. now, seq
local standing = up_to_date(function(Q, args)
  local p, seq = Q.p, args[2]
  local state, x = state_of(Q, seq)
  local held, delayed, ahead = 0, 0, 0
  if state == 'ready' then
    if Q.c.fifo then
      local g = group_of(x)
      if groups.first_out(Q, g) < tonumber(seq) then held = 1 end
      for _, each in ipairs(call('ZRANGE', p .. 'r:' .. g, 0, 9999)) do
        if each == seq then break end
        if call('ZSCORE', p .. 'd', each) then
          delayed = 1
          break
        end
      end
    end
    for _, each in ipairs(in_order(Q, 10000)) do
      if each == seq then break end
      ahead = ahead + 1
    end
  end
  local limited = {}
  if state == 'ready' and Q.c.lim then limited = limits.why(Q, x and group_of(x) or '-') end
  return {state or '', held, delayed, ahead, limited}
end)

local stats = up_to_date(function(Q, args)
  local p = Q.p
  local delayed = call('ZCARD', p .. 'd')
  local ready = Q.pl + Q.bk + Q.mx - (Q.c.fifo and delayed or 0)
  local oldest
  local function older(seq)
    local found = seq and call('XRANGE', p .. 'm', seq, seq)[1]
    local x = seq and not found and extra_of(Q, seq)
    local sent = found and sent_of(found[1]) or x and x.S
    if sent and (not oldest or sent < oldest) then oldest = sent end
  end
  local id = next_plain(Q)
  if id then oldest = sent_of(id) end
  for _, ready_list in ipairs(Q.bk + Q.mx > 0 and ready_lists_of(Q) or {}) do
    older(call('ZRANGE', ready_list, 0, 0)[1])
  end
  return {ready, delayed, in_flight_count(Q) + Q.lb, Q.by, oldest and S(oldest) or '',
    Q.next, call('HGETALL', p .. 'n'), limits.held(Q)}
end)

-- Apply what is due: {next due time, number of ready messages, version of the settings}. now, watch ms
local tick = up_to_date(function(Q, args)
  if args[2] then Q.w = max(Q.w, Q.now + tonumber(args[2])) end  -- a consumer waits for so long
  local ready = Q.pl + Q.bk + Q.mx
  if ready > 0 and not limits.may_deliver(Q) then ready = 0 end
  return {S(Q.next), ready, Q.c.v, concat({S(Q.seq), S(Q.num), ready, in_flight_count(Q)}, ' ')}
end)

-- -- changing messages --------------------------------------------------------------------------------------

-- Take a ready or delayed message: state, options, record, time sent; or nil and the reason.
local function taken(Q, seq)
  local state, x = state_of(Q, seq)
  if not state then return nil, 'gone' end
  if state == 'in_flight' then return nil, 'in_flight' end
  local rec, sent = record_of(Q, seq, x)
  if not rec then return nil, 'gone' end
  leave_queue(Q, seq, x, rec)
  return state, x, rec, sent
end

-- now, then seqs
local cancel = up_to_date(function(Q, args)
  local answers = {}
  for i = 2, #args do
    local state, x, rec, sent = taken(Q, args[i])
    if state then
      remove_message(Q, args[i], x, sent, GONE_CANCELLED)
      answers[i - 1] = 1
    else
      answers[i - 1] = x
    end
  end
  return answers
end)

-- now, seq, record, type or ''
local edit = up_to_date(function(Q, args)
  local seq, rec = args[2], special(args[3])
  local state, x = state_of(Q, seq)
  local answer = 1
  if not state then
    answer = 'gone'
  elseif state == 'in_flight' then
    answer = 'in_flight'
  else
    local old, sent = record_of(Q, seq, x)
    if not old then return 'gone' end
    if not x then
      -- A plain message moves to the plain ready list: its record in the stream stays as published.
      leave_ready_list(Q, seq, nil)
      x = published_extra(old)
      x.t = nil
      put_extra(Q, seq, x)
      enqueue(Q, seq, x)
    end
    x.E, x.b = 1, x.b or sent
    x.t = args[4] ~= '' and args[4] or nil
    put_extra(Q, seq, x)
    call('HSET', Q.p .. 'ed', seq, rec)
    Q.by = Q.by + size_of(rec) - size_of(old)
    event(Q, 'E', seq)
  end
  return answer
end)

-- now, seq, due
local reschedule = up_to_date(function(Q, args)
  local seq, due = args[2], tonumber(args[3])
  local state, x, rec, sent = taken(Q, seq)
  local answer = 1
  if state then
    requeue(Q, seq, x or published_extra(rec), sent, rec, due)
    event(Q, 'S', S(due), seq)
  else
    answer = x
  end
  return answer
end)

-- Move or redrive messages to another queue. now, why, target, then seqs: the outbox entry of each
local move_out = up_to_date(function(Q, args)
  local why, answers = tonumber(args[2]), {}
  for i = 4, #args do
    local seq = args[i]
    local state, x, rec, sent = taken(Q, seq)
    if state then
      x = x or published_extra(rec)
      forget_message(Q, seq, x, sent)
      answers[i - 3] = to_outbox(Q, {s = seq, m = sent, w = why, x = x, o = 'waiting', to = {args[3]}}, rec)
    else
      answers[i - 3] = '?' .. x
    end
  end
  return answers
end)

local function clear(Q, waiting_only)
  local p = Q.p
  local n = waiting_count(Q)
  if not waiting_only then n = n + in_flight_count(Q) end
  for _, rank in ipairs(call('ZRANGE', p .. 'p', 0, -1)) do
    for _, g in ipairs(call('LRANGE', p .. 't:' .. rank, 0, -1)) do call('DEL', p .. 'r:' .. rank .. ':' .. g) end
    call('DEL', p .. 't:' .. rank, p .. 'gz:' .. rank)
  end
  for _, g in ipairs(call('LRANGE', p .. 't:0', 0, -1)) do call('DEL', p .. 'r:0:' .. g) end
  for rank, list in pairs(limits.parked(Q) or {}) do
    for _, g in ipairs(list) do call('DEL', p .. 'r:' .. rank .. ':' .. g) end
  end
  call('DEL', p .. 'kp')
  for _, g in ipairs(call('ZRANGE', p .. 'gs', 0, -1)) do call('DEL', p .. 'r:' .. g) end
  call('DEL', p .. 't:0', p .. 'p', p .. 'gr', p .. 'gs', p .. 'd', p .. 'sk', p .. 'dm', p .. 'r:' .. PLAIN)
  -- Purged messages may be published again; the dedup window keeps only those in flight.
  local kept = {}
  for _, seq in ipairs(waiting_only and call('HKEYS', p .. 'o') or {}) do
    local x = extra_of(Q, seq)
    local key = x and x.k and dedup_key(Q, x)
    local id = key and call('HGET', p .. 'k', key)
    if id and id == (x.i and 'i' .. x.i or 's' .. seq) then
      kept[#kept + 1] = {key, id, call('ZSCORE', p .. 'kz', key)}
    end
  end
  call('DEL', p .. 'k', p .. 'kz')
  for _, each in ipairs(kept) do
    call('HSET', p .. 'k', each[1], each[2])
    call('ZADD', p .. 'kz', each[3], each[1])
  end
  if waiting_only then
    for _, seq in ipairs(call('HKEYS', p .. 'x')) do
      if call('HEXISTS', p .. 'o', seq) == 0 then
        local x = extra_of(Q, seq)
        x.d = nil
        local _, sent = record_of(Q, seq, x)
        forget_message(Q, seq, x, sent or 0)
      end
    end
  else
    for _, holder in ipairs(call('ZRANGE', p .. 'hd', 0, -1)) do call('DEL', p .. 'b:' .. holder) end
    for _, g in ipairs(call('HKEYS', p .. 'go')) do call('DEL', p .. 'og:' .. g) end
    Q.rc = 0
    call('DEL', p .. 'ru', p .. 'rn', p .. 'o', p .. 'l', p .. 'hd', p .. 'go', p .. 'x', p .. 'ed', p .. 'i', p .. 'u', p .. 'e')
    call('DEL', p .. 'eo')
  end
  local last = call('XREVRANGE', p .. 'm', '+', '-', 'COUNT', 1)[1]
  if last then Q.cur = seq_of(last[1]) end
  if Q.c.hist == 0 then
    -- Without history only the records of messages in flight stay.
    local kept = {}
    if waiting_only then
      for _, run in ipairs(call('ZRANGE', p .. 'rn', 0, -1)) do split_run(Q, run) end
      for _, seq in ipairs(by_number(call('HKEYS', p .. 'o'))) do
        kept[#kept + 1] = call('XRANGE', p .. 'm', seq, seq)[1]
      end
    end
    call('DEL', p .. 'm')
    for _, each in ipairs(kept) do call('XADD', p .. 'm', each[1], unpack(each[2])) end
  end
  Q.pl, Q.bk, Q.mx, Q.sk, Q.by, Q.ra = 0, 0, 0, 0, 0, 0
  if Q.c.lim then limits.rebuild(Q) end
  return n
end

-- now, 1 to spare messages in flight
local purge = up_to_date(function(Q, args)
  local n = clear(Q, args[2] == '1')
  count(Q, 'removed', n)
  -- With the last sequence of the queue: earlier events tell which messages were removed.
  event(Q, 'P', args[2], S(Q.cur))
  return n
end)
