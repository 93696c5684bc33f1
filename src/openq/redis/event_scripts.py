"""Scripts with which readers of events search streams inside Redis. They only read.

Like those of `stream_scripts`, without which a reader of events does: that module needs more packages.
"""

from __future__ import annotations

# The first entry of each stream from a place on. ARGV: the place in each. The reply: index and id of the
# entry, for each stream that has one. A key that another program replaced has none.
FIRST_ENTRIES = """
local found = {}
for i = 1, #KEYS do
  local page = redis.pcall('XRANGE', KEYS[i], ARGV[i], '+', 'COUNT', 1)
  if not page.err and page[1] then
    found[#found + 1], found[#found + 2] = i, page[1][1]
  end
end
return found
"""

# The first sequence of a stream `m` whose time is not before ARGV[1]: in the order of sequences, times never
# decrease.
FIRST_SEQUENCE = """
local key, ms = KEYS[1], tonumber(ARGV[1])
local function split(entry)
  local dash = string.find(entry[1], '-', 1, true)
  return tonumber(string.sub(entry[1], 1, dash - 1)), tonumber(string.sub(entry[1], dash + 1))
end
local last = redis.pcall('XREVRANGE', key, '+', '-', 'COUNT', 1)
if last.err or not last[1] then return '0' end
local high, sent = split(last[1])
high = high + 1
local low = split(redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1])
if sent < ms then low = high end
while low < high do
  local middle = math.floor((low + high) / 2)
  local found = redis.call('XRANGE', key, string.format('%.0f', middle), '+', 'COUNT', 1)[1]
  local seq, at = split(found)
  if at < ms then low = seq + 1 else high = middle end
end
return string.format('%.0f', low)
"""

# The ids of messages that have one of their own. KEYS: `m`, `h` and `x` of the queue; ARGV: sequences. The
# reply: how many were examined, then sequence and id of each. Of a message that was moved into the queue, and
# has left it, the event of its arrival has the id; it has the time of the record. Without a history, records
# go with their messages; then an event of the publish has the id.
OWN_IDS = """
local answer, spent = {#ARGV}, 0
local function size_at(text, at)
  local a, b, c, d = string.byte(text, at, at + 3)
  return d and a + b * 256 + c * 65536 + d * 16777216 or 0
end
local function decoded(text)
  local is_json, fields = pcall(cjson.decode, text)
  return is_json and type(fields) == 'table' and fields or {}
end
local published
local function published_id(seq)
  if not published then
    published = {}
    local from, left = '-', 20
    while left > 0 do
      local page = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', 1000)
      for _, each in ipairs(page) do
        local number, id = string.match(each[2][2], '^N\\31(%d+)\\31(.*)$')
        if number then published[number] = id end
        from = '(' .. each[1]
      end
      left = #page == 1000 and left - 1 or 0
    end
    spent = spent + 100000
  end
  return published[seq]
end
for i = 1, #ARGV do
  local seq, id = ARGV[i], nil
  local found = redis.call('XRANGE', KEYS[1], seq, seq, 'COUNT', 1)[1]
  local record = found and found[2][2]
  local flags = record and string.byte(record, 1) or 0
  spent = spent + 200 + (record and #record or 0)
  if not record or math.floor(flags / 8) % 2 == 1 then
    local extra = redis.call('HGET', KEYS[3], seq)
    id = extra and decoded(extra).i
    if not id and not found then id = published_id(seq) end
    if not id and found then
      local ms = string.sub(found[1], string.find(found[1], '-', 1, true) + 1)
      for _, each in ipairs(redis.call('XRANGE', KEYS[2], ms, ms, 'COUNT', 1000)) do
        id = id or string.match(each[2][2], '^I\\31[^\\31]*\\31' .. seq .. '\\31(.*)$')
      end
    end
  elseif math.floor(flags / 2) % 2 == 1 then
    id = decoded(string.sub(record, 7, 6 + size_at(record, 3))).i
  end
  if type(id) == 'string' and id ~= '' then
    answer[#answer + 1], answer[#answer + 2] = seq, id
  end
  if spent > 1000000 then
    answer[1] = i
    break
  end
end
return answer
"""

# Queues that were deleted. KEYS: the stream of the store; ARGV: from which id on. The reply: where to
# continue or '', then id and text of each.
DELETED_QUEUES = """
local answer, from, left = {''}, ARGV[1], 20
while true do
  local page = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', 100)
  for _, found in ipairs(page) do
    if string.sub(found[2][2], 1, 1) == 'D' then
      answer[#answer + 1], answer[#answer + 2] = found[1], found[2][2]
    end
    from = '(' .. found[1]
  end
  left = left - 1
  if #page < 100 then return answer end
  if left == 0 then
    answer[1] = from
    return answer
  end
end
"""

# Of a queue without a history. KEYS: `m` and `q`. The reply: the last id ever in `m`, and since and until
# when its events are kept for readers that watch.
WATCHED_INFO = """
local last = '0-0'
if redis.call('EXISTS', KEYS[1]) == 1 then
  local facts = redis.call('XINFO', 'STREAM', KEYS[1])
  for i = 1, #facts, 2 do
    if facts[i] == 'last-generated-id' then last = facts[i + 1] end
  end
end
local watched = redis.call('HMGET', KEYS[2], 'eb', 'ew')
return {last, watched[1] or '0', watched[2] or '0'}
"""
