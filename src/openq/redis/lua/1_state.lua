-- The state of one queue in Redis, and the order of its messages.
--
-- All keys of a queue share a hash tag, a part of the store's name and the queue's number, so they live in one slot:
--   q   hash: settings (c), counters of the state, see FIELDS     n   hash: what happened so far
--   m   stream: messages as published, id <seq>-<sent ms>; those acked stay as history
--   x   hash: seq -> extra as JSON, for every live message that is not plain
--   ed  hash: seq -> record of a message that was edited, or that came back from the outbox after its entry in `m` was
--   removed; eo  sorted set: seqs of the latter
--   r:<priority>:<group>  sorted set of seqs: a ready list of a standard queue; r:<group>: of a FIFO queue
--   t:<priority>  list: groups of a level, taking turns           p   sorted set: priorities in use
--   gz:<rank>  sorted set: FIFO groups that can be served, by ticket    gr, go  hashes: rank, messages in flight
--   og:<group>  sorted set: seqs of a FIFO group in flight         gs  sorted set: FIFO groups with waiting
--   messages, by their first seq
--   o   hash: seq -> lease                l  sorted set: seq by deadline of its lease
--   ru  hash: number -> a run of leases, for plain messages delivered together; rn  their numbers by first seq
--   hd  sorted set: holders of bound leases by heartbeat          b:<holder>  set: what it holds
--   sb, sb:<subscription>, sp:..  batches of leases, see 6_subscriptions.lua
--   d, e  sorted sets: delayed by due time, expiring by expiry    sk  plain messages taken out of the middle
--   i, u  hashes: own ids, unique keys -> seq                     k, kz  dedup keys and their ends
--   kf  hash: messages in flight of each limited key              kt  sorted set: keys by when their bucket is full, in us
--   kb  sorted set: keys that a limit blocks, by when the next token is due; FAR: until a delivery ends
--   kp  hash: blocked key -> ranks of its ready lists, which have no turns
--   ob  hash: outbox, messages on their way to other queues       oc  hash: who claimed an outbox entry
--   in  sorted set: outbox entries of other queues that arrived
--   tk:<client>  hash: answers to the last calls of a client, so that a call may be repeated
--   jb, jz  how far the staged batches of jobs are published here, and until when that is kept (8_stages.lua)
--   sc  hash: schedule -> its last run here (9_schedules.lua)
--   dm  sorted set: seqs whose record was found missing, as long as the history covers them
--   h   stream: events
--   ev  written by readers of events, so that WAIT covers what they have read
-- A plain message (standard queue, no priority, group, delay, expiry, id...) has only its entry in `m`: the entries
-- after the cursor `cur` are ready. Returned and special messages are in the ready lists.

-- Lua's own functions are missing while a library is loaded: the first call sets these.
local call, floor, min, max, byte, sub, find, match, format, concat
local function prepare()
  call = redis.call
  floor, min, max = math.floor, math.min, math.max
  byte, sub, find, match = string.byte, string.sub, string.find, string.match
  format, concat = string.format, table.concat
end

local PLAIN = '0:-'  -- the ready list of returned plain messages
local FIELDS = {'seq', 'last', 'num', 'ms', 'next', 'cur', 'pl', 'bk', 'mx', 'by', 'w', 'ra', 'sk', 'tr', 'oid', 'rc', 'lb',
  'hf', 'hu', 'hl', 'gt', 'qt', 'qd', 'ew', 'ea'}
local FIELD_COUNT = #FIELDS
local GRACE_MS = 100  -- how long a message with TTL 0 is offered while a consumer waits
local SLICE = 1000  -- deadlines handled in one call
local FAR = 2 ^ 61
local CLOCK_MS = 60000
local CLAIM_MS = 300000  -- how long after its claim an outbox entry may still arrive

local NACKED, EXPIRED, RELEASED = 1, 2, 3
local DEAD_RECEIVES, DEAD_REJECTED, DEAD_EXPIRED, DEAD_OVERFLOW, REDRIVEN, MOVED, ROUTED = 1, 2, 3, 4, 5, 6, 7
-- Lua allows 200 locals here, so related functions share tables.
-- Of readers of events: a queue announces its events at most so often; without a history it keeps so many for them,
-- for so long. The stream of the store keeps `STORE_EVENTS`, for `STORE_MS`.
local readers = {ANNOUNCE_MS = 20, KEPT_EVENTS = 10000, KEPT_MS = 120000, STORE_EVENTS = 10000, STORE_MS = 345600000}
local GONE_EXPIRED, GONE_CANCELLED = 1, 3
local GONE = {[DEAD_EXPIRED] = GONE_EXPIRED, [DEAD_OVERFLOW] = 2, [DEAD_REJECTED] = 4, [DEAD_RECEIVES] = 5}
local ENDED = {[NACKED] = 'nacked', [EXPIRED] = 'lease_expired', [RELEASED] = 'released'}

-- Lua writes numbers beyond 14 digits as 1e+15. `%d` takes a fifth of the time of `%.0f`.
local function S(n)
  return format(n % 1 == 0 and '%d' or '%.0f', n)
end

local function failure(code, text)
  return {err = 'OQ ' .. code .. (text and ' ' .. text or '')}
end

-- Cache of decoded settings; no answer depends on its content.
local known, known_count = {}, 0
local function settings_of(text)
  local c = known[text]
  if not c then
    c = cjson.decode(text)
    if known_count >= 4096 then known, known_count = {}, 0 end
    known[text], known_count = c, known_count + 1
  end
  return c
end

-- The time in milliseconds, and the microseconds beyond them.
local function now_of(text)
  local now, us = tonumber(text), 0
  if now == 0 then
    local t = call('TIME')
    now, us = t[1] * 1000 + floor(t[2] / 1000), t[2] % 1000
  end
  return now, us
end

-- The queue of a call, or nil and an error.
local function open(keys, args)
  local k = keys[1]
  local f = call('HMGET', k, 'c', unpack(FIELDS))
  if not f[1] then return nil, failure(call('HEXISTS', k, 'gone') == 1 and 'GONE' or 'NOQUEUE') end
  -- With all its fields from the start: a table that grows is copied again and again.
  local Q = {k = k, p = sub(k, 1, -2), c = settings_of(f[1]), was = f, us = 0, now = 0, wakes = false,
    has_events = false, seq = 0, last = 0, num = 0, ms = 0, next = 0, cur = 0, pl = 0, bk = 0, mx = 0, by = 0, w = 0,
    ra = 0, sk = 0, tr = 0, oid = 0, rc = 0, lb = 0, hf = 0, hu = 0, hl = 0, gt = 0, qt = 0, qd = 0, ew = 0, ea = 0}
  for i = 1, FIELD_COUNT do
    local value = f[i + 1]
    if value then
      value = tonumber(value) or 0
      Q[FIELDS[i]], f[i] = value, value
    else
      f[i] = 0
    end
  end
  local now, us = now_of(args[1])
  Q.us = us
  -- Time does not run backwards after a small step of the clock; a large step is accepted.
  if now < Q.ms and Q.ms - now < CLOCK_MS then now = Q.ms end
  Q.now, Q.ms = now, max(now, Q.ms)
  return Q
end

local function count(Q, what, n)
  call('HINCRBY', Q.p .. 'n', what, n or 1)
end

-- Publish on a channel of the store; subscribers on every node get it.
local function announce(Q, channel, text)
  call('PUBLISH', sub(Q.k, 1, find(Q.k, ':{', 1, true)) .. channel, text)
end

local function save(Q)
  if Q.w > Q.now then
    if Q.next > 0 and (Q.was[5] == 0 or Q.next < Q.was[5]) then
      -- Processes with waiters must wake up by then.
      announce(Q, 'due', Q.k .. ' ' .. S(Q.next))
    end
    if Q.wakes then
      announce(Q, 'wake', Q.k)
      Q.w = 0  -- announced once: remaining waiters watch again
    end
  end
  if Q.ew > Q.now and Q.now >= Q.ea + readers.ANNOUNCE_MS and (Q.has_events or Q.seq ~= Q.was[1]) then
    -- Readers of events look again after that time, so later events of that time are found too.
    announce(Q, 'events', S(Q.ms))
    Q.ea = Q.now
  end
  -- The size of a missing record is unknown: the byte count of an empty queue is reset.
  if Q.by ~= 0 and Q.pl + Q.bk + Q.mx == 0 and call('ZCARD', Q.p .. 'd') == 0 then Q.by = 0 end
  local was, changed, at = Q.was, {}, 0
  for i = 1, FIELD_COUNT do
    local name = FIELDS[i]
    local value = Q[name]
    if value ~= was[i] then
      changed[at + 1], changed[at + 2] = name, S(value)
      at = at + 2
    end
  end
  -- Write even if nothing changed: on newer servers WAIT covers only the writes of the call itself, and what this
  -- call found done may have been done by an earlier try of it, whose answer was lost.
  if at == 0 then changed = {'ms', S(Q.ms)} end
  call('HSET', Q.k, unpack(changed))
end

-- Cursors hold the history from millisecond `hf` on until `hu`, without a limit in number; the events dropped
-- meanwhile are older than `hl`.
local function is_held(Q)
  return Q.hu > Q.now and Q.c.hist > 0
end

-- The first event of a call is numbered by half microseconds: so events of several queues have an order. The others
-- follow it.
local function event(Q, ...)
  local key, text, limit = Q.p .. 'h', concat({...}, '\31'), Q.c.hist > 0 and Q.c.hmax * 3 or readers.KEPT_EVENTS
  if Q.c.hist == 0 and Q.ew <= Q.now then return end
  if is_held(Q) then limit = FAR end
  local id = S(Q.ms) .. '-'
  local added
  if not Q.has_events then
    Q.has_events = true
    added = redis.pcall('XADD', key, 'MAXLEN', '~', S(limit), id .. S(Q.us * 2), 'e', text)
  end
  if not added or type(added) == 'table' then call('XADD', key, 'MAXLEN', '~', S(limit), id .. '*', 'e', text) end
  -- A queue without a history: its events are kept for the readers that watch now.
  if Q.c.hist == 0 then call('PEXPIRE', key, readers.KEPT_MS) end
end

-- A message was published. Without a history its entry in `m` may be gone when events are read.
function readers.published(Q, seq, own_id)
  if Q.c.hist == 0 and Q.ew > Q.now then event(Q, 'N', seq, own_id or '') end
end

local function deadline(Q, at)
  if at < FAR and (Q.next == 0 or at < Q.next) then Q.next = at end
end

-- -- records and extras ---------------------------------------------------------------------------

-- A record: flags (1 not plain, 2 has options as published, 4 has properties, 8 moved from another queue), encoding,
-- [size, options], [size, properties], body.
local function u32(text, at)
  local a, b, c, d = byte(text, at, at + 3)
  return d and a + b * 256 + c * 65536 + d * 16777216 or 0
end

local function has(flags, bit)
  return floor(flags / bit) % 2 == 1
end

-- The body size; 0 for a missing or truncated record.
local function size_of(rec)
  if not rec then return 0 end
  local flags = byte(rec, 1) or 0
  if flags < 2 then return #rec - 2 end
  local at = 3
  if has(flags, 2) then at = at + 4 + u32(rec, at) end
  if has(flags, 4) then at = at + 4 + u32(rec, at) end
  return max(0, #rec - at + 1)
end

-- Messages whose record or options (`x`) were damaged by another program are set aside, and reported in the answer
-- of the call that found them. Other messages are not affected.
local damage = {GONE = 6}

damage.TYPES = {p = 'number', d = 'number', e = 'number', c = 'number', f = 'number', b = 'number', E = 'number',
  W = 'number', L = 'number', X = 'number', S = 'number', g = 'string', t = 'string', k = 'string', u = 'string',
  i = 'string', r = 'string', n = 'string', K = 'string', D = 'table', R = 'table'}

-- The decoded options, or nil if they are damaged.
function damage.decode(text)
  local is_json, x = pcall(cjson.decode, text)
  if not is_json or type(x) ~= 'table' or x[1] ~= nil then return nil end
  local types = damage.TYPES
  for name, value in pairs(x) do
    local kind = type(value)
    if (types[name] or kind) ~= kind or (kind == 'number' and not (value >= 0 and value < 2 ^ 63)) then return nil end
  end
  return x
end

local function published_extra(rec)
  if not rec or not has(byte(rec, 1) or 0, 2) then return {} end
  return damage.decode(sub(rec, 7, 6 + u32(rec, 3))) or {}
end

local function special(rec)
  local flags = byte(rec, 1)
  return flags % 2 == 1 and rec or string.char(flags + 1) .. sub(rec, 2)
end

local function from_elsewhere(rec)
  local flags = byte(rec, 1)
  return has(flags, 8) and rec or string.char(flags + 8) .. sub(rec, 2)
end

local function extra_of(Q, seq)
  local text = call('HGET', Q.p .. 'x', seq)
  return text and (damage.decode(text) or damage.replace(Q, seq)) or nil
end

local function put_extra(Q, seq, x)
  call('HSET', Q.p .. 'x', seq, cjson.encode(x))
end

-- Report in the answer of this call. `outcome`: aside (it left its queue), found (it is still there) or lost (`seq`
-- is the number of lost messages).
function damage.name(Q, seq, outcome, why, own_id)
  local met = Q.damaged or {}
  Q.damaged = met
  met[outcome == 'lost' and '-' or seq] = {outcome, why, seq, own_id or ''}
end

-- Outcome, reason, seq and own id of each damaged message; nil if there are none.
function damage.named(Q)
  if not Q.damaged then return nil end
  local flat = {}
  for _, each in pairs(Q.damaged) do
    for i = 1, 4 do flat[#flat + 1] = each[i] end
  end
  return flat
end

-- The ready list that a message is in or was delivered from: rank, group; nil if there is none.
function damage.ready_list_of(Q, seq, g)
  local p = Q.p
  if Q.c.fifo then
    local function is_in(each)
      return call('ZSCORE', p .. 'og:' .. each, seq) or call('ZSCORE', p .. 'r:' .. each, seq)
    end
    if is_in(g) then return 0, g end
    for _, each in ipairs(call('HKEYS', p .. 'go')) do
      if is_in(each) then return 0, each end
    end
    for _, each in ipairs(call('ZRANGE', p .. 'gs', 0, SLICE)) do
      if is_in(each) then return 0, each end
    end
    return nil
  end
  if call('ZSCORE', p .. 'r:' .. PLAIN, seq) then return 0, '-' end
  local parked = Q.c.kl and damage.limits.parked(Q)
  for _, rank in ipairs(damage.limits.ranks(Q, parked)) do
    for _, each in ipairs(damage.limits.groups(Q, rank, parked)) do
      if call('ZSCORE', p .. 'r:' .. rank .. ':' .. each, seq) then return tonumber(rank), each end
    end
  end
end

-- Rebuild damaged or missing options from the structures the message is in and from its record, so that it can be
-- removed from all of them. `X`: it is not delivered any more.
function damage.replace(Q, seq)
  local p = Q.p
  local found = call('XRANGE', p .. 'm', seq, seq)[1]
  local said = published_extra(found and found[2][2])
  local x = {X = 1, g = said.g, p = said.p, i = said.i, u = said.u, k = said.k}
  x.d, x.e = tonumber(call('ZSCORE', p .. 'd', seq) or nil), tonumber(call('ZSCORE', p .. 'e', seq) or nil)
  if call('HEXISTS', p .. 'ed', seq) == 1 then x.E = 1 end
  local rank, g = damage.ready_list_of(Q, seq, x.g and '+' .. x.g or '-')
  if rank then x.g = g ~= '-' and sub(g, 2) or nil end
  if rank and not Q.c.fifo then x.p = rank end
  put_extra(Q, seq, x)
  damage.name(Q, seq, 'found', 'extra', x.i)
  return x
end

local function sent_of(id)
  return tonumber(sub(id, find(id, '-', 1, true) + 1))
end

local function seq_of(id)
  return tonumber(sub(id, 1, find(id, '-', 1, true) - 1))
end

-- The record and the time sent; nil if it is missing. S: when a message was sent that has no entry in the stream.
local function record_of(Q, seq, x)
  local found = call('XRANGE', Q.p .. 'm', seq, seq)[1]
  local edited = x and x.E and call('HGET', Q.p .. 'ed', seq)
  if found then return edited or found[2][2], sent_of(found[1]) end
  if edited then return edited, x.S or x.b or Q.now end
end

local function rank_of(Q, x)
  return min(x.p or 0, Q.c.mp)
end

local function group_of(x)
  return x.g and '+' .. x.g or '-'
end

local function is_expired(Q, x, sent)
  if x and x.e and x.e <= Q.now then return true end
  return max(sent, x and x.d or 0) <= Q.now - Q.c.ret
end

-- -- order of messages -----------------------------------------------------------------------------

local function in_flight_count(Q)
  return call('HLEN', Q.p .. 'o') + Q.rc
end

local function waiting_count(Q)
  local n = Q.pl + Q.bk + Q.mx
  return Q.c.fifo and n or n + call('ZCARD', Q.p .. 'd')
end

local groups = {}  -- of FIFO queues

-- The first seq of a FIFO group in flight: messages after it are held.
function groups.first_out(Q, g)
  local n = call('HGET', Q.p .. 'go', g)
  if not n then return FAR end
  local out = Q.p .. 'og:' .. g
  -- Servers of an earlier version only count: their deliveries hold the whole group.
  if call('ZCARD', out) ~= tonumber(n) then return 0 end
  return tonumber(call('ZRANGE', out, 0, 0)[1])
end

function groups.add_lease(Q, g, seq)
  local out = Q.p .. 'og:' .. g
  if call('HINCRBY', Q.p .. 'go', g, 1) == 1 then call('DEL', out) end
  call('ZADD', out, seq, seq)
end

-- -- limits ---------------------------------------------------------------------------------------

-- The rules are those of engine/limits.py. A key is a group, here with its '+'. Settings: `lim`, whether there are
-- limits; `kl`, whether keys have some; `lq`, the rule of the queue; `kd` and `ko`, the rules of all and of single
-- keys. A rule: c, most in flight; i, microseconds between two tokens; b, most tokens.
-- Fields: qt, when the bucket of the queue is full, in microseconds; qd, when it has its next token.
local limits = {}

function limits.rule(Q, g)
  local c = Q.c
  if not c.kl or g == '-' then return nil end
  local rule = c.ko and c.ko[sub(g, 2)] or c.kd
  return rule and (rule.c or rule.i) and rule
end

function limits.is_blocked(Q, g)
  return Q.c.kl and call('ZSCORE', Q.p .. 'kb', g)
end

-- How many tokens a bucket has that is full at `used`, and when the next one comes.
function limits.tokens(Q, rule, used)
  local now, room = Q.now * 1000, rule.b * rule.i
  local ahead = max(used - now, 0)
  -- Times are exact to a microsecond.
  return floor((room - ahead + 1) / rule.i), Q.now - floor((room - ahead - rule.i + 1) / 1000)
end

function limits.used_after(Q, rule, used, n)
  return max(used, Q.now * 1000) + n * rule.i
end

-- The state of a bucket under another rate: at most empty.
function limits.capped(Q, rule, used)
  return min(used, Q.now * 1000 + rule.b * rule.i)
end

function limits.used(Q, g)
  return tonumber(call('ZSCORE', Q.p .. 'kt', g) or 0)
end

function limits.out(Q, g)
  return tonumber(call('HGET', Q.p .. 'kf', g) or 0)
end

-- nil: not blocked; FAR: until a delivery ends; else the time of the next token.
function limits.blocked_until(Q, g, rule)
  if rule.c and limits.out(Q, g) >= rule.c then return FAR end
  if rule.i then
    local n, due = limits.tokens(Q, rule, limits.used(Q, g))
    if n < 1 then return due end
  end
end

-- How many more deliveries a rule allows.
function limits.allowance(Q, rule, out, used)
  local n = rule.c and max(0, rule.c - out) or FAR
  return rule.i and min(n, (limits.tokens(Q, rule, used))) or n
end

function limits.of_key(Q, g)
  local rule = limits.rule(Q, g)
  return rule and limits.allowance(Q, rule, rule.c and limits.out(Q, g), rule.i and limits.used(Q, g)) or FAR
end

function limits.of_queue(Q)
  return Q.c.lq and limits.allowance(Q, Q.c.lq, in_flight_count(Q), Q.qt) or FAR
end

-- n tokens of the queue are taken; the next one may be waited for.
function limits.take(Q, n)
  local rule = Q.c.lq
  if not rule or not rule.i then return end
  Q.qt = floor(limits.used_after(Q, rule, Q.qt, n) + 0.5)
  local left, due = limits.tokens(Q, rule, Q.qt)
  Q.qd = 0
  if left < 1 then
    Q.qd = due
    deadline(Q, due)
  end
end

-- The ready list of a blocked key has no turn.
function limits.park(Q, g, rank)
  local ranks = call('HGET', Q.p .. 'kp', g)
  if not ranks then
    call('HSET', Q.p .. 'kp', g, rank)
  elseif not find(',' .. ranks .. ',', ',' .. rank .. ',', 1, true) then
    call('HSET', Q.p .. 'kp', g, ranks .. ',' .. rank)
  end
end

function limits.block(Q, g, till)
  local p = Q.p
  call('ZADD', p .. 'kb', S(till), g)
  deadline(Q, till)
  if Q.c.fifo then return limits.update_ticket(Q, g) end
  local ranks = call('ZRANGE', p .. 'p', 0, -1)
  if ranks[1] ~= '0' then ranks[#ranks + 1] = '0' end
  for _, rank in ipairs(ranks) do
    -- From the tail: mostly it has just had its turn.
    if call('LREM', p .. 't:' .. rank, -1, g) > 0 then limits.park(Q, g, rank) end
  end
end

function limits.give_turns(Q, g)
  local p = Q.p
  local ranks = call('HGET', p .. 'kp', g)
  if not ranks then return end
  call('HDEL', p .. 'kp', g)
  for rank in string.gmatch(ranks, '%d+') do
    if call('EXISTS', p .. 'r:' .. rank .. ':' .. g) == 1 then
      call('RPUSH', p .. 't:' .. rank, g)
      call('ZADD', p .. 'p', rank, rank)
    end
  end
end

-- A delivery of a key starts; `has_token`: it takes one.
function limits.start(Q, g, has_token)
  local rule = limits.rule(Q, g)
  if not rule then return end
  if rule.c then call('HINCRBY', Q.p .. 'kf', g, 1) end
  if rule.i and has_token then
    call('ZADD', Q.p .. 'kt', format('%.3f', limits.used_after(Q, rule, limits.used(Q, g), 1)), g)
  end
  local till = limits.blocked_until(Q, g, rule)
  if till then limits.block(Q, g, till) end
end

-- Ready lists of a rank that have no turns, by their first message: rank -> groups; nil if there are none.
function limits.parked(Q)
  if not Q.c.kl or call('EXISTS', Q.p .. 'kp') == 0 then return nil end
  local all, found = call('HGETALL', Q.p .. 'kp'), {}
  for i = 1, #all, 2 do
    for rank in string.gmatch(all[i + 1], '%d+') do
      local first = call('ZRANGE', Q.p .. 'r:' .. rank .. ':' .. all[i], 0, 0)[1]
      if first then
        found[rank] = found[rank] or {}
        table.insert(found[rank], {tonumber(first), all[i]})
      end
    end
  end
  for rank, list in pairs(found) do
    table.sort(list, function(a, b) return a[1] < b[1] end)
    for i, each in ipairs(list) do list[i] = each[2] end
  end
  return found
end

-- The groups of a rank: those with turns, then the others.
function limits.groups(Q, rank, parked)
  local all = call('LRANGE', Q.p .. 't:' .. rank, 0, -1)
  for _, g in ipairs(parked and parked[rank] or {}) do all[#all + 1] = g end
  return all
end

-- Priorities, highest first, including those without turns.
function limits.ranks(Q, parked)
  local ranks, seen = call('ZREVRANGE', Q.p .. 'p', 0, -1), {}
  for _, rank in ipairs(ranks) do seen[rank] = true end
  for rank in pairs(parked or {}) do
    if not seen[rank] and rank ~= '0' then ranks[#ranks + 1] = rank end
  end
  if parked then table.sort(ranks, function(a, b) return tonumber(a) > tonumber(b) end) end
  if ranks[#ranks] ~= '0' then ranks[#ranks + 1] = '0' end
  return ranks
end

damage.limits = limits

-- A FIFO group has a ticket while its first message is due and no earlier one is in flight. A group that gets a new
-- ticket goes behind all others.
local function update_ticket(Q, g)
  if Q.group == g then return end  -- `end_turn` does it
  local p = Q.p
  local rank, ticket = call('HGET', p .. 'gr', g), nil
  if rank then
    ticket = call('ZSCORE', p .. 'gz:' .. rank, g)
    call('ZREM', p .. 'gz:' .. rank, g)
    call('HDEL', p .. 'gr', g)
  end
  local first = call('ZRANGE', p .. 'r:' .. g, 0, 0)[1]
  if not first then
    call('ZREM', p .. 'gs', g)
    return
  end
  call('ZADD', p .. 'gs', first, g)
  if tonumber(first) < groups.first_out(Q, g) and not call('ZSCORE', p .. 'd', first)
      and not limits.is_blocked(Q, g) then
    local own = rank_of(Q, extra_of(Q, first) or {})
    if not ticket then
      -- Higher than every sequence: servers of an earlier version order the groups by sequence.
      Q.gt = max(Q.gt, Q.seq) + 1
      ticket = S(Q.gt)
    end
    call('ZADD', p .. 'gz:' .. own, ticket, g)
    call('HSET', p .. 'gr', g, own)
    call('ZADD', p .. 'p', own, own)
  end
end

limits.update_ticket = update_ticket

-- Whether a blocked key stays so; else it gets its turns or its ticket.
function limits.check(Q, g)
  local rule = limits.rule(Q, g)
  local till = rule and limits.blocked_until(Q, g, rule)
  if till then
    call('ZADD', Q.p .. 'kb', S(till), g)
    deadline(Q, till)
    return
  end
  call('ZREM', Q.p .. 'kb', g)
  Q.wakes = true
  if Q.c.fifo then update_ticket(Q, g) else limits.give_turns(Q, g) end
end

-- A delivery of a key ended.
function limits.finish(Q, g)
  local rule = limits.rule(Q, g)
  if not rule then return end
  if rule.c and call('HINCRBY', Q.p .. 'kf', g, -1) <= 0 then call('HDEL', Q.p .. 'kf', g) end
  if limits.is_blocked(Q, g) then limits.check(Q, g) end
end

-- A message that was taken is not delivered: the token of its key returns.
function limits.refund_key(Q, g)
  local rule = limits.rule(Q, g)
  if rule and rule.i then
    call('ZADD', Q.p .. 'kt', format('%.3f', limits.used(Q, g) - rule.i), g)
    if limits.is_blocked(Q, g) then limits.check(Q, g) end
  end
end

-- No consumer saw the delivery: its tokens return.
function limits.refund(Q, g)
  local rule = Q.c.lq
  if rule and rule.i then
    Q.qt = floor(Q.qt - rule.i + 0.5)
    Q.wakes = true
  end
  limits.refund_key(Q, g)
end

-- Count what is in flight again, and find the keys that are blocked: the limits changed, or the queue was purged.
function limits.rebuild(Q)
  local p = Q.p
  local parked, blocked = limits.parked(Q) or {}, call('ZRANGE', p .. 'kb', 0, -1)
  if not Q.c.kl then
    -- `parked` reads them under the new settings, in which keys have no limits.
    local kl = Q.c
    Q.c = {kl = true}
    parked = limits.parked(Q) or {}
    Q.c = kl
    call('DEL', p .. 'kt')
  end
  for rank, list in pairs(parked) do
    for _, g in ipairs(list) do call('RPUSH', p .. 't:' .. rank, g) end
    call('ZADD', p .. 'p', rank, rank)
  end
  call('DEL', p .. 'kf', p .. 'kb', p .. 'kp')
  Q.qd = 0
  local keys = {}
  for _, seq in ipairs(Q.c.kl and call('HKEYS', p .. 'o') or {}) do
    local x = extra_of(Q, seq)
    local g = x and group_of(x) or '-'
    local rule = limits.rule(Q, g)
    if rule and rule.c then
      call('HINCRBY', p .. 'kf', g, 1)
      keys[g] = rule
    end
  end
  for _, g in ipairs(Q.c.kl and call('ZRANGE', p .. 'kt', 0, -1) or {}) do
    local rule = limits.rule(Q, g)
    if rule and rule.i then
      call('ZADD', p .. 'kt', format('%.3f', limits.capped(Q, rule, limits.used(Q, g))), g)
      keys[g] = rule
    else
      call('ZREM', p .. 'kt', g)
    end
  end
  for g, rule in pairs(keys) do
    local till = limits.blocked_until(Q, g, rule)
    if till then limits.block(Q, g, till) end
  end
  if Q.c.fifo then
    -- By their first messages.
    for i, g in ipairs(blocked) do blocked[i] = {tonumber(call('ZSCORE', p .. 'gs', g) or FAR), g} end
    table.sort(blocked, function(a, b) return a[1] < b[1] end)
    for _, each in ipairs(blocked) do update_ticket(Q, each[2]) end
  end
  local rule = Q.c.lq
  Q.qt = rule and rule.i and limits.capped(Q, rule, Q.qt) or 0
  limits.take(Q, 0)
end

local function has_plain(Q)
  return Q.pl + Q.bk > 0
end

-- Before a message enters the plain ready list: it needs a turn where ready lists take turns.
local function add_plain_turn(Q)
  if Q.mx > 0 and not has_plain(Q) and not Q.c.fifo then call('RPUSH', Q.p .. 't:0', '-') end
end

local function enqueue(Q, seq, x)
  local p = Q.p
  Q.wakes = true
  if Q.c.fifo then
    local g = group_of(x)
    local ready_list = p .. 'r:' .. g
    call('ZADD', ready_list, seq, seq)
    Q.mx = Q.mx + 1
    if call('ZRANGE', ready_list, 0, 0)[1] == seq then update_ticket(Q, g) end  -- only the first of a group matters
    return
  end
  local rank, g = rank_of(Q, x), group_of(x)
  if rank == 0 and g == '-' then
    add_plain_turn(Q)
    call('ZADD', p .. 'r:' .. PLAIN, seq, seq)
    Q.bk = Q.bk + 1
    return
  end
  if Q.mx == 0 then
    call('DEL', p .. 't:0')
    if has_plain(Q) then call('RPUSH', p .. 't:0', '-') end
  end
  local ready_list = p .. 'r:' .. rank .. ':' .. g
  if call('EXISTS', ready_list) == 0 then
    if limits.is_blocked(Q, g) then
      limits.park(Q, g, rank)
    else
      call('RPUSH', p .. 't:' .. rank, g)
      call('ZADD', p .. 'p', rank, rank)
    end
  end
  call('ZADD', ready_list, seq, seq)
  Q.mx = Q.mx + 1
end

local function leave_turns(Q, rank, g)
  local turns = Q.p .. 't:' .. rank
  call('LREM', turns, 0, g)
  if rank > 0 and call('EXISTS', turns) == 0 then call('ZREM', Q.p .. 'p', rank) end
end

-- Remove a message from its ready list; `x` is nil for a plain one that was never delivered.
local function leave_ready_list(Q, seq, x)
  local p = Q.p
  if not x then
    call('ZADD', p .. 'sk', seq, seq)
    Q.sk = Q.sk + 1
    Q.pl = Q.pl - 1
    if Q.mx > 0 and not has_plain(Q) then leave_turns(Q, 0, '-') end
  elseif Q.c.fifo then
    local g = group_of(x)
    if call('ZREM', p .. 'r:' .. g, seq) == 1 then Q.mx = Q.mx - 1 end
    update_ticket(Q, g)
  else
    local rank, g = rank_of(Q, x), group_of(x)
    if rank == 0 and g == '-' then
      if call('ZREM', p .. 'r:' .. PLAIN, seq) == 1 then Q.bk = Q.bk - 1 end
      if Q.mx > 0 and not has_plain(Q) then leave_turns(Q, 0, '-') end
    else
      local ready_list = p .. 'r:' .. rank .. ':' .. g
      if call('ZREM', ready_list, seq) == 1 then Q.mx = Q.mx - 1 end
      if call('EXISTS', ready_list) == 0 then leave_turns(Q, rank, g) end
    end
  end
end

-- The next plain message that was never delivered, without taking it: id, record.
local function next_plain(Q)
  local p = Q.p
  while Q.pl > 0 do
    local found = call('XRANGE', p .. 'm', S(Q.cur + 1), '+', 'COUNT', 1)[1]
    if not found then
      damage.lost(Q, Q.pl)
      Q.pl = 0
      return nil
    end
    local seq, is_plain = seq_of(found[1]), (byte(found[2][2], 1) or 0) % 2 == 0
    if is_plain and not (Q.sk > 0 and call('ZREM', p .. 'sk', S(seq)) == 1) then
      return found[1], found[2][2], seq
    end
    if is_plain then Q.sk = Q.sk - 1 end
    Q.cur = seq
  end
end

local function pop_plain(Q)
  local back = Q.bk > 0 and call('ZRANGE', Q.p .. 'r:' .. PLAIN, 0, 0)[1]
  local id, rec, seq = next_plain(Q)
  if back and (not id or tonumber(back) < seq) then
    call('ZREM', Q.p .. 'r:' .. PLAIN, back)
    Q.bk = Q.bk - 1
    local x = extra_of(Q, back) or damage.replace(Q, back)
    local rec, sent = record_of(Q, back, x)
    return back, sent, rec, x
  end
  if not id then return nil end
  Q.cur = seq
  Q.pl = Q.pl - 1
  return S(seq), sent_of(id), rec, nil
end

local function pop_level(Q, rank)
  local p = Q.p
  local turns = p .. 't:' .. rank
  local g = call('LINDEX', turns, 0)
  if not g then return nil end
  local seq, sent, rec, x
  local empty
  if rank == 0 and g == '-' then
    seq, sent, rec, x = pop_plain(Q)
    empty = not has_plain(Q)
  else
    local ready_list = p .. 'r:' .. rank .. ':' .. g
    seq = call('ZPOPMIN', ready_list)[1]
    if seq then
      Q.mx = Q.mx - 1
      x = extra_of(Q, seq) or damage.replace(Q, seq)
      rec, sent = record_of(Q, seq, x)
    end
    empty = call('EXISTS', ready_list) == 0
  end
  if empty then
    call('LPOP', turns)
    if rank > 0 and call('EXISTS', turns) == 0 then call('ZREM', p .. 'p', rank) end
  else
    call('LMOVE', turns, turns, 'LEFT', 'RIGHT')
  end
  return seq, sent, rec, x
end

-- The group that a receive took from last has had its turn.
function groups.end_turn(Q)
  local g = Q.group
  if g then
    Q.group = nil
    update_ticket(Q, g)
  end
end

function groups.next(Q)
  local p = Q.p
  for _, rank in ipairs(call('ZREVRANGE', p .. 'p', 0, -1)) do
    local gz = p .. 'gz:' .. rank
    local g = call('ZRANGE', gz, 0, 0)[1]
    if g then
      call('ZREM', gz, g)
      call('HDEL', p .. 'gr', g)
      return g
    end
    call('ZREM', p .. 'p', rank)
  end
end

-- All deliverable messages of the group with the lowest ticket, then of the next; `end_turn` follows the last.
function groups.pop(Q)
  local p = Q.p
  while true do
    if not Q.group then
      Q.group = groups.next(Q)
      if not Q.group then return nil end
      Q.held_from = groups.first_out(Q, Q.group)
    end
    local ready_list = p .. 'r:' .. Q.group
    local seq = call('ZRANGE', ready_list, 0, 0)[1]
    if seq and tonumber(seq) < Q.held_from and not call('ZSCORE', p .. 'd', seq)
        and not limits.is_blocked(Q, Q.group) then
      call('ZREM', ready_list, seq)
      Q.mx = Q.mx - 1
      groups.add_lease(Q, Q.group, seq)
      local x = extra_of(Q, seq)
      if not x or group_of(x) ~= Q.group then x = damage.replace(Q, seq) end
      local rec, sent = record_of(Q, seq, x)
      return seq, sent, rec, x
    end
    groups.end_turn(Q)
  end
end

-- Take the next message: seq, time sent, record, options.
local function pop(Q)
  if Q.c.fifo then return groups.pop(Q) end
  if Q.mx == 0 then return pop_plain(Q) end
  for _, rank in ipairs(call('ZREVRANGE', Q.p .. 'p', 0, -1)) do
    if rank ~= '0' then
      local seq, sent, rec, x = pop_level(Q, tonumber(rank))
      if seq then return seq, sent, rec, x end
      call('ZREM', Q.p .. 'p', rank)
    end
  end
  return pop_level(Q, 0)
end

-- A delivery ended: its message was settled or returned.
local function end_delivery(Q, seq, x)
  if Q.c.kl and x.g then limits.finish(Q, '+' .. x.g) end
  if not Q.c.fifo then return end
  local g = group_of(x)
  if call('HINCRBY', Q.p .. 'go', g, -1) <= 0 then
    call('HDEL', Q.p .. 'go', g)
    call('DEL', Q.p .. 'og:' .. g)
  else
    call('ZREM', Q.p .. 'og:' .. g, seq)
  end
  Q.wakes = true
  update_ticket(Q, g)
end

-- A run: first seq, deadline, time of delivery, count, one digit for each seq (1: in flight), holder, consumer.
local RUN = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$'

-- The number of the run that a message in flight belongs to.
local function run_with(Q, seq)
  if Q.rc == 0 then return nil end
  local number = call('ZREVRANGEBYSCORE', Q.p .. 'rn', seq, '-inf', 'LIMIT', 0, 1)[1]
  if not number then return nil end
  local first, _, _, _, bits = match(call('HGET', Q.p .. 'ru', number) or '', RUN)
  if not first then return nil end
  local at = tonumber(seq) - tonumber(first) + 1
  return sub(bits, at, at) == '1' and number or nil
end

local function end_run(Q, number, holder)
  call('HDEL', Q.p .. 'ru', number)
  call('ZREM', Q.p .. 'rn', number)
  if holder == '-' then
    call('ZREM', Q.p .. 'l', 'L' .. number)
  else
    call('SREM', Q.p .. 'b:' .. holder, 'L' .. number)
  end
end

-- Replace a run by one lease for each message: one of them is settled on its own.
local function split_run(Q, number)
  local p = Q.p
  local text = call('HGET', p .. 'ru', number)
  if not text then return end
  local first, till, delivered_ms, left, bits, holder, consumer = match(text, RUN)
  end_run(Q, number, holder)
  Q.rc = Q.rc - tonumber(left)
  local from, sent = tonumber(first), {}
  for _, found in ipairs(call('XRANGE', p .. 'm', first, S(from + #bits - 1))) do
    local dash = find(found[1], '-', 1, true)
    sent[sub(found[1], 1, dash - 1)] = sub(found[1], dash + 1)
  end
  for at = 1, #bits do
    if byte(bits, at) == 49 then
      local seq = S(from + at - 1)
      -- A message without a record keeps its lease: its consumer may ack it.
      local lease = {number, till, 1, delivered_ms, sent[seq] or delivered_ms, holder, consumer}
      call('HSET', p .. 'o', seq, concat(lease, ' '))
      if holder == '-' then
        call('ZADD', p .. 'l', till, seq)
      else
        call('SADD', p .. 'b:' .. holder, seq)
      end
    end
  end
end

-- The state of a message ('in_flight', 'delayed', 'ready', or nil) and its options.
local function state_of(Q, seq)
  local p = Q.p
  local x = extra_of(Q, seq)
  if call('HEXISTS', p .. 'o', seq) == 1 then return 'in_flight', x end
  if not x and run_with(Q, seq) then return 'in_flight' end
  if x then return call('ZSCORE', p .. 'd', seq) and 'delayed' or 'ready', x end
  if Q.c.fifo or tonumber(seq) <= Q.cur then return nil end
  local found = call('XRANGE', p .. 'm', seq, seq)[1]
  if found and (byte(found[2][2], 1) or 0) % 2 == 0 and not (Q.sk > 0 and call('ZSCORE', p .. 'sk', seq)) then
    return 'ready', nil
  end
end

-- Remove a settled message from everything but the dedup window and the history.
local function forget_message(Q, seq, x, sent)
  local p = Q.p
  if x then
    if x.i and call('HGET', p .. 'i', x.i) == seq then call('HDEL', p .. 'i', x.i) end
    if x.u and call('HGET', p .. 'u', x.u) == seq then call('HDEL', p .. 'u', x.u) end
    if x.e then call('ZREM', p .. 'e', seq) end
    if x.d then call('ZREM', p .. 'd', seq) end
    if x.E then
      call('HDEL', p .. 'ed', seq)
      call('ZREM', p .. 'eo', seq)
    end
    call('HDEL', p .. 'x', seq)
  end
  if Q.c.hist == 0 or tonumber(seq) <= Q.tr then call('XDEL', p .. 'm', seq .. '-' .. S(sent)) end
end
