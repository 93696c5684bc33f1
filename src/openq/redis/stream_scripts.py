"""Scripts that search streams inside Redis, so that bodies are not transferred. They only read.

A stream may hold large messages, so each script stops after a limited amount of data, and returns how far it
came.
"""

from __future__ import annotations

from openq.redis.registry import BLOCK

# A script blocks Redis, and all data that it reads is copied for it: it stops after about a megabyte. (Not
# every Redis lets scripts read a clock.)
_BUDGET = """
local spent = 0
local function spend(record) spent = spent + 200 + #record end
local function is_over() return spent > 1000000 end
"""

# The sequences of messages of a time range: in the order of sequences, times never decrease. ARGV: from
# sequence, from time, until time. The reply: first and last sequence of each block of sequences that has
# some.
RANGES = (
    """
local key, block = KEYS[1], """
    + str(BLOCK)
    + """
local function S(n) return string.format('%.0f', n) end
local function at_or_after(seq)
  local found = redis.call('XRANGE', key, S(seq), '+', 'COUNT', 1)[1]
  if not found then return nil end
  local dash = string.find(found[1], '-', 1, true)
  return tonumber(string.sub(found[1], 1, dash - 1)), tonumber(string.sub(found[1], dash + 1))
end
local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
if not last then return {} end
last = tonumber(string.sub(last[1], 1, string.find(last[1], '-', 1, true) - 1))
-- The first sequence from `low` on whose time is not before `ms`.
local function seek(low, ms)
  local high = last + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local seq, sent = at_or_after(middle)
    if sent and sent < ms then low = seq + 1 else high = middle end
  end
  return low
end
local stop = seek(tonumber(ARGV[1]), tonumber(ARGV[3]))
local seq = at_or_after(seek(tonumber(ARGV[1]), tonumber(ARGV[2])))
local answer = {}
while seq and seq < stop do
  local over = (math.floor((seq - 1) / block) + 1) * block + 1
  local final = redis.call('XREVRANGE', key, S(math.min(over, stop) - 1), S(seq), 'COUNT', 1)[1][1]
  answer[#answer + 1] = S(seq)
  answer[#answer + 1] = string.sub(final, 1, string.find(final, '-', 1, true) - 1)
  seq = at_or_after(over)
end
return answer
"""
)

# Messages without their bodies. ARGV: first and last sequence, maximum count. The reply: id, head of the
# record and size of the body of each.
HEADS = (
    _BUDGET
    + """
local answer = {}
local function u32(text, at)
  local a, b, c, d = string.byte(text, at, at + 3)
  return a + b * 256 + c * 65536 + d * 16777216
end
local from, left = ARGV[1], tonumber(ARGV[3])
while left > 0 do
  local page = redis.call('XRANGE', KEYS[1], from, ARGV[2], 'COUNT', math.min(left, 10))
  for _, found in ipairs(page) do
    local record, at = found[2][2], 3
    spend(record)
    local flags = string.byte(record, 1)
    if math.floor(flags / 2) % 2 == 1 then at = at + 4 + u32(record, at) end
    if math.floor(flags / 4) % 2 == 1 then at = at + 4 + u32(record, at) end
    local n = #answer
    answer[n + 1], answer[n + 2], answer[n + 3] = found[1], string.sub(record, 1, at - 1), #record - at + 1
    from = '(' .. found[1]
  end
  if #page < math.min(left, 10) then break end
  left = left - #page
  if is_over() then break end
end
return answer
"""
)

# Own ids of messages. ARGV: sequences. The reply: how many were examined, then sequence and id of each that
# has one.
OWN_IDS = (
    _BUDGET
    + """
local answer = {#ARGV}
for i = 1, #ARGV do
  local found = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i], 'COUNT', 1)[1]
  if found then
    local record = found[2][2]
    spend(record)
    if math.floor(string.byte(record, 1) / 2) % 2 == 1 then
      local a, b, c, d = string.byte(record, 3, 6)
      local fields = cjson.decode(string.sub(record, 7, 6 + a + b * 256 + c * 65536 + d * 16777216))
      if fields.i then
        answer[#answer + 1] = ARGV[i]
        answer[#answer + 1] = fields.i
      end
    end
  end
  if is_over() then
    answer[1] = i
    break
  end
end
return answer
"""
)

# Returns and arrivals among events. ARGV: where to start. The reply: whether that is all, where to continue,
# then id and text of each.
RETURNS_AND_ARRIVALS = (
    _BUDGET
    + """
local answer, from = {1, ''}, ARGV[1]
while true do
  local page = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', 100)
  for _, found in ipairs(page) do
    local kind = string.sub(found[2][2], 1, 1)
    spend(found[2][2])
    if kind == 'R' or kind == 'I' then
      answer[#answer + 1] = found[1]
      answer[#answer + 1] = found[2][2]
    end
    from = '(' .. found[1]
  end
  answer[2] = from
  if #page < 100 then return answer end
  if is_over() then
    answer[1] = 0
    return answer
  end
end
"""
)
