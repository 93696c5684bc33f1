-- Key-values: values under keys, in buckets.
--
-- The keys of a bucket share a tag, so they live in one slot:
--   v   hash: key -> '<version> <changed ms> <expires ms> <token> <value>'
--   z   sorted set, all scores 0: the keys in the order of their bytes, for listings by prefix
--   e   sorted set: keys by the time they expire
--   c   hash: n last version, b bytes of keys and values, w until when changes are announced (Redis's own time)
-- Versions of a bucket begin at a number made of the time, so that `c` of an empty bucket need not be kept for ever.
do

local HEAD = '^(%d+) (%d+) (%d+) (%S+) ()'
local EXPIRED_SLICE = 100  -- expired keys that a call removes
local FIRST_VERSION = 1024  -- versions per millisecond
local EMPTY_MS = 86400000  -- how long the counters of an empty bucket are kept

local function keys_of(v)
  local p = sub(v, 1, -2)
  return {k = v, v = v, z = p .. 'z', e = p .. 'e', c = p .. 'c'}
end

-- Version, expiry, token and size of the value; version 0: there is no such key, or it has expired.
local function head_of(raw, now)
  if not raw then return 0, 0, '', 0 end
  local version, _, expires, token, from = match(raw, HEAD)
  expires = tonumber(expires)
  if expires > 0 and expires <= now then return 0, 0, '', 0 end
  return tonumber(version), expires, token, #raw - from + 1
end

local function is_watched(B)
  if B.watched == nil then
    B.watched = (tonumber(call('HGET', B.c, 'w')) or 0) > now_of('0')
  end
  return B.watched
end

local function tell(B, key)
  if is_watched(B) then announce(B, 'kv', B.v .. key) end
end

local function remove(B, key, raw)
  local _, _, _, _, from = match(raw, HEAD)
  call('HDEL', B.v, key)
  call('ZREM', B.z, key)
  call('ZREM', B.e, key)
  call('HINCRBY', B.c, 'b', -(#key + #raw - from + 1))
  tell(B, key)
end

-- A bucket without keys keeps its counters for a while.
local function settle(B)
  if call('EXISTS', B.v) == 0 and call('EXISTS', B.c) == 1 then call('PEXPIRE', B.c, EMPTY_MS) end
end

local function expire(B, now, limit)
  local due = call('ZRANGEBYSCORE', B.e, '-inf', S(now), 'LIMIT', 0, limit)
  for _, key in ipairs(due) do
    local raw = call('HGET', B.v, key)
    if raw then remove(B, key, raw) else call('ZREM', B.e, key) end
  end
  return #due
end

-- now, token, then key, value, ttl ('': for ever), version ('': any): whether the bucket was empty, then for each
-- put its version, or -1 - the current version if that is another one. A put that is repeated after its answer was
-- lost finds its own token, and is not refused.
local function kv_put(keys, args)
  local B, now, token = keys_of(keys[1]), now_of(args[1]), args[2]
  expire(B, now, EXPIRED_SLICE)
  local was_empty = call('EXISTS', B.v) == 0
  local last = tonumber(call('HGET', B.c, 'n')) or now * FIRST_VERSION
  local answers, bytes = {was_empty and 1 or 0}, 0
  for i = 3, #args, 4 do
    local key, value, ttl, wanted = args[i], args[i + 1], args[i + 2], args[i + 3]
    local raw = call('HGET', B.v, key)
    local version, _, by, size = head_of(raw, now)
    local mine = wanted ~= '' and token .. '.' .. i or '-'
    if wanted ~= '' and by == mine then
      answers[#answers + 1] = version
    elseif wanted ~= '' and tonumber(wanted) ~= version then
      answers[#answers + 1] = -1 - version
    else
      if raw and version == 0 then remove(B, key, raw) end
      last = last + 1
      local expires = ttl == '' and 0 or min(now + tonumber(ttl), FAR)
      call('HSET', B.v, key, S(last) .. ' ' .. S(now) .. ' ' .. S(expires) .. ' ' .. mine .. ' ' .. value)
      if version == 0 then
        call('ZADD', B.z, 0, key)
        bytes = bytes + #key
      end
      if expires > 0 then call('ZADD', B.e, S(expires), key) else call('ZREM', B.e, key) end
      bytes = bytes + #value - size
      answers[#answers + 1] = last
      tell(B, key)
    end
  end
  call('HINCRBY', B.c, 'b', S(bytes))
  call('HSET', B.c, 'n', S(last))  -- also if nothing was put: see `save`
  if was_empty then call('PERSIST', B.c) end
  settle(B)
  return answers
end

-- now, then key, version (0: any): 1 for each key that was deleted
local function kv_delete(keys, args)
  local B, now, answers = keys_of(keys[1]), now_of(args[1]), {}
  for i = 2, #args, 2 do
    local raw = call('HGET', B.v, args[i])
    local version = head_of(raw, now)
    local wanted = tonumber(args[i + 1])
    local is_deleted = version > 0 and (wanted == 0 or wanted == version)
    if is_deleted then remove(B, args[i], raw) end
    answers[#answers + 1] = is_deleted and 1 or 0
  end
  expire(B, now, EXPIRED_SLICE)
  if call('EXISTS', B.c) == 1 then call('HINCRBY', B.c, 'b', 0) end  -- also if nothing was deleted: see `save`
  settle(B)
  return answers
end

-- now, keys: what is stored under each
local function kv_get(keys, args)
  local now, answers = now_of(args[1]), {}
  for i = 2, #args do
    local raw = call('HGET', keys[1], args[i])
    answers[i - 1] = head_of(raw, now) > 0 and raw or false
  end
  return answers
end

-- now, prefix, after, limit, most bytes: keys and what is stored under them
local function kv_list(keys, args)
  local B, now, prefix, after = keys_of(keys[1]), now_of(args[1]), args[2], args[3]
  local limit, room = tonumber(args[4]), tonumber(args[5])
  local from = after >= prefix and after ~= '' and '(' .. after or '[' .. prefix
  -- UTF-8 has no byte 255: it is beyond all keys with the prefix.
  local till = prefix == '' and '+' or '[' .. prefix .. '\255'
  local answers = {}
  while limit > 0 and room > 0 do
    local page = call('ZRANGEBYLEX', B.z, from, till, 'LIMIT', 0, min(limit, 100))
    if #page == 0 then break end
    for _, key in ipairs(page) do
      local raw = room > 0 and call('HGET', B.v, key)
      local version, _, _, size = head_of(raw, now)
      if version > 0 then
        answers[#answers + 1], answers[#answers + 2] = key, raw
        limit, room = limit - 1, room - size
      end
    end
    from = '(' .. page[#page]
  end
  return answers
end

-- now, key, version, for how long: what is stored under the key if it is newer, else changes are announced; then
-- when it expires, 0 if never
local function kv_watch(keys, args)
  local B, now = keys_of(keys[1]), now_of(args[1])
  local raw = call('HGET', B.v, args[2])
  local version, expires = head_of(raw, now)
  if version > tonumber(args[3]) then return {raw, 0} end
  local till = now_of('0') + tonumber(args[4])
  if till > (tonumber(call('HGET', B.c, 'w')) or 0) then call('HSET', B.c, 'w', S(till)) end
  settle(B)
  return {false, expires}
end

-- now, most: removes expired keys; number of keys, bytes, and when the next key expires
local function kv_sweep(keys, args)
  local B, now = keys_of(keys[1]), now_of(args[1])
  if expire(B, now, tonumber(args[2])) > 0 then settle(B) end
  local next_due = call('ZRANGE', B.e, 0, 0, 'WITHSCORES')
  return {call('HLEN', B.v), tonumber(call('HGET', B.c, 'b') or 0), tonumber(next_due[2] or 0)}
end

register('kv_put', kv_put, ADDS)
register('kv_delete', kv_delete, ALLOWED_WHEN_FULL)
register('kv_get', kv_get, {'no-writes'})
register('kv_list', kv_list, {'no-writes'})
register('kv_watch', kv_watch, ALLOWED_WHEN_FULL)
register('kv_sweep', kv_sweep, ALLOWED_WHEN_FULL)

end
