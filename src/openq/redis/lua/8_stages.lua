-- Staged batches: a job sends them in parts and publishes each once.
--
-- The keys of a job share a tag, so they live in one slot:
--   j   hash: b newest published batch, r its rows, x its rejected rows, o owner of the job, from its first part on;
--       n, until it has published, number of staged batches: the owner keeps it while there are any;
--       pb batch with a commit plan, po its owner, pr the plan, pd rows that are confirmed as published, pt time of
--       the last progress
--   f:<batch>  hash: part -> its metadata; @o owner, @t time of the last change, @b bytes of all parts, @w their
--       weight in memory, @n how often a part was put
--   p:<batch>  hash: part -> its bytes
-- A job has one plan at a time. Each queue stores how much of a batch it has (jb): messages and progress are written
-- by one call.
do

local MARKS_MS = 2592000000  -- a job without activity for so long is forgotten
local STAGE = {'@o', '@t', '@b', '@w', '@n'}  -- fields of f beside the parts
local ORPHANS_MS = 3600000  -- parts that no list names expire, later than a sweep would drop them

local function is_foreign(known, owner, is_admin)
  return known and known ~= '' and owner ~= '' and known ~= owner and is_admin ~= '1'
end

local function keys_of(j, batch)
  local p = sub(j, 1, -2)
  return p .. 'f:' .. batch, p .. 'p:' .. batch
end

local function is_done(b, batch)
  return b and tonumber(b) >= tonumber(batch)
end

local function count_parts(f)
  return max(0, call('HLEN', f) - #STAGE)
end

-- now, batch, part, owner, is admin, metadata, data, most parts, kept for, repairs, weight: 'kept', 'done' or 'late';
-- then weight and number of parts of the batch
local function stage_put(keys, args)
  local j, batch, part, owner, is_admin = keys[1], args[2], args[3], args[4], args[5]
  local f, p = keys_of(j, batch)
  local known = call('HMGET', j, 'o', 'b', 'pb')
  local stage = call('HMGET', f, '@o', '@w')
  if is_foreign(known[1], owner, is_admin) or is_foreign(stage[1], owner, is_admin) then return failure('OWNER') end
  local word = 'kept'
  if is_done(known[2], batch) then
    word = 'done'
  elseif known[3] == batch and args[10] ~= '1' then
    word = 'late'
  else
    local is_new = call('HEXISTS', f, part) == 0
    if is_new and count_parts(f) >= tonumber(args[8]) then return failure('PARTS') end
    local more = #args[7] - call('HSTRLEN', p, part)
    local weight = is_new and args[11] or more + #args[6] - call('HSTRLEN', f, part)
    local kept = S(tonumber(args[9]) + ORPHANS_MS)
    if known[1] and known[1] ~= '' then owner = known[1] end
    if stage[1] and stage[1] ~= '' then owner = stage[1] end
    if not known[2] and owner ~= '' then
      call('HSET', j, 'o', owner)
      if not stage[1] then call('HINCRBY', j, 'n', 1) end
      if not known[3] then call('PEXPIRE', j, kept) end
    end
    call('HSET', f, part, args[6], '@o', owner, '@t', S(now_of(args[1])))
    call('HSET', p, part, args[7])
    call('HINCRBY', f, '@b', more)
    call('HINCRBY', f, '@n', 1)
    stage[2] = call('HINCRBY', f, '@w', weight)
    if known[3] ~= batch then
      call('PEXPIRE', f, kept)
      call('PEXPIRE', p, kept)
    end
  end
  return {word, tonumber(stage[2] or 0), count_parts(f)}
end

-- now, batch, most parts: time, fields of the job, fields of the batch, number of parts, then the plan and the parts,
-- unless there are more than that; neither if that is 0
local function stage_look(keys, args)
  local j = keys[1]
  local f = keys_of(j, args[2])
  local reply = {now_of(args[1]), call('HMGET', j, 'o', 'b', 'r', 'x', 'pb', 'po', 'pd', 'pt'),
    call('HMGET', f, unpack(STAGE)), count_parts(f)}
  local most = tonumber(args[3])
  if most > 0 then
    reply[5], reply[6] = call('HGET', j, 'pr'), reply[4] <= most and call('HGETALL', f) or {}
  end
  return reply
end

-- now, batch, owner, plan, put count as the caller knows it: 'made', or what prevents it
local function stage_promise(keys, args)
  local j, batch = keys[1], args[2]
  local f, p = keys_of(j, batch)
  local known = call('HMGET', j, 'b', 'pb', 'pr')
  if is_done(known[1], batch) then return 'done' end
  if known[2] == batch and known[3] == args[4] then return 'made' end
  if known[2] then return 'other' end
  if (call('HGET', f, '@n') or '-1') ~= args[5] then return 'changed' end
  call('HSET', j, 'pb', batch, 'po', args[3], 'pr', args[4], 'pd', 0, 'pt', S(now_of(args[1])))
  for _, key in ipairs({j, f, p}) do call('PERSIST', key) end
  return 'made'
end

-- now, batch, rows: 1 if the plan is still that of this batch
local function stage_progress(keys, args)
  local j = keys[1]
  local known = call('HMGET', j, 'pb', 'pd')
  if known[1] ~= args[2] then return 0 end
  call('HSET', j, 'pd', S(max(tonumber(args[3]), tonumber(known[2]))), 'pt', S(now_of(args[1])))
  return 1
end

local function end_promise(j)
  call('HDEL', j, 'pb', 'po', 'pr', 'pd', 'pt')
end

-- now, batch, rows, rejected, kept for
local function stage_done(keys, args)
  local j, batch = keys[1], args[2]
  if call('HGET', j, 'pb') ~= batch then return 0 end
  call('HSET', j, 'b', batch, 'r', args[3], 'x', args[4], 'o', call('HGET', j, 'po'))
  call('HDEL', j, 'n')
  end_promise(j)
  call('UNLINK', keys_of(j, batch))
  call('PEXPIRE', j, args[5])
  return 1
end

-- now, batch, owner, is admin, 1 even with a plan, kept for: 'dropped', 'done' if it is published (only leftovers were
-- dropped), 'promised' if it has a plan and stays
local function stage_drop(keys, args)
  local j, batch, owner, is_admin = keys[1], args[2], args[3], args[4]
  local f, p = keys_of(j, batch)
  local known = call('HMGET', j, 'o', 'b', 'pb', 'n')
  if is_foreign(known[1], owner, is_admin) or is_foreign(call('HGET', f, '@o'), owner, is_admin) then
    return failure('OWNER')
  end
  if known[3] == batch then
    if args[5] ~= '1' then return 'promised' end
    end_promise(j)
    call('PEXPIRE', j, args[6])
  end
  local was_staged = call('UNLINK', f, p) > 0
  if is_done(known[2], batch) then return 'done' end
  if known[3] and known[3] ~= batch then return 'dropped' end
  -- A job name without batches has no owner. A count that is too high, from expired parts, ends with the key.
  if known[4] and was_staged and call('HINCRBY', j, 'n', -1) <= 0 then call('UNLINK', j) end
  return 'dropped'
end

-- Publish into a queue. now, job, batch, rows that the queue has as the caller knows it, rows with these, then record,
-- options of each: rows that it has, and the answers. Nothing is published if the caller's count is wrong.
local stage_publish = on_queue(function(Q, args)
  local job, batch, after, up_to = args[2], tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
  local marks, ends = Q.p .. 'jb', Q.p .. 'jz'
  local of, rows = match(call('HGET', marks, job) or '', '^(%d+) (%d+)$')
  of, rows = tonumber(of) or -1, tonumber(rows) or 0
  -- The progress of a forgotten job must not affect a new job of the same name.
  if of >= 0 and tonumber(call('ZSCORE', ends, job) or 0) <= Q.now then of = -1 end
  if of > batch then
    rows = FAR
  elseif of < batch then
    rows = 0
  end
  if rows >= up_to or rows ~= after then return {S(min(rows, 2 ^ 53))} end
  if Q.c.dbc then
    for i = 7, #args, 2 do
      if args[i] == '' or cjson.decode(args[i]).k == nil then return nil, failure('STALE') end
    end
  end
  local answers, refused = publish_all(Q, args, 5, true)
  if refused then return nil, refused end
  call('HSET', marks, job, args[3] .. ' ' .. args[5])
  call('ZADD', ends, S(Q.now + MARKS_MS), job)
  local over = call('ZRANGEBYSCORE', ends, '-inf', S(Q.now), 'LIMIT', 0, 100)
  if #over > 0 then
    call('ZREM', ends, unpack(over))
    call('HDEL', marks, unpack(over))
  end
  return {args[5], answers}
end)

-- Shorten how long a queue keeps the progress of a job. now, job, kept for. Only for published batches: a waiting plan
-- needs the progress.
local stage_fade = on_queue(function(Q, args)
  call('ZADD', Q.p .. 'jz', 'XX', 'LT', S(Q.now + tonumber(args[3])), args[2])
  return 1
end)

register('stage_put', stage_put, ADDS)
register('stage_look', stage_look, ALLOWED_WHEN_FULL)
register('stage_promise', stage_promise, ADDS)
register('stage_progress', stage_progress, ALLOWED_WHEN_FULL)
register('stage_done', stage_done, ALLOWED_WHEN_FULL)
register('stage_drop', stage_drop, ALLOWED_WHEN_FULL)
register('stage_publish', stage_publish, ADDS)
register('stage_fade', stage_fade, ALLOWED_WHEN_FULL)

end

do  -- another block: Lua allows 200 locals at a time

-- The list of all staged batches: hash, batch and job -> weight and time; '' -> total weight.

local function set_staged(list, name, bytes, now)
  local before = tonumber(match(call('HGET', list, name) or '', '^%d+') or 0)
  if bytes then
    call('HSET', list, name, S(bytes) .. ' ' .. S(now))
  else
    call('HDEL', list, name)
  end
  call('HINCRBY', list, '', (bytes or 0) - before)
end

-- now, batch and job, bytes to add, most bytes, most batches: 'ok', or which limit is reached
local function stage_enter(keys, args)
  local list, name, more = keys[1], args[2], tonumber(args[3])
  local known = call('HGET', list, name)
  if not known and call('HLEN', list) > tonumber(args[5]) then return {'stages'} end
  local all = tonumber(call('HGET', list, '') or 0)
  if all + more > tonumber(args[4]) then return {'bytes', all} end
  set_staged(list, name, tonumber(match(known or '0', '^%d+')) + more, now_of(args[1]))
  return {'ok'}
end

-- now, batch and job, its bytes; '': it was dropped
local function stage_settle(keys, args)
  set_staged(keys[1], args[2], tonumber(args[3]), now_of(args[1]))
  return 1
end

-- The jobs that published lately: sorted sets, of all and of each owner, by the time they are forgotten.
-- now, owner, job, kept for, most of an owner, most: 'ok', 'owner' or 'all'
local function stage_job(keys, args)
  local all, own, job = keys[1], keys[1] .. ':' .. args[2], args[3]
  local now = now_of(args[1])
  for _, key in ipairs({all, own}) do call('ZREMRANGEBYSCORE', key, '-inf', S(now)) end
  if not call('ZSCORE', own, job) then
    if call('ZCARD', own) >= tonumber(args[5]) then return 'owner' end
    if call('ZCARD', all) >= tonumber(args[6]) then return 'all' end
  end
  local till = S(now + tonumber(args[4]))
  call('ZADD', all, till, job)
  call('ZADD', own, till, job)
  call('PEXPIRE', own, S(max(tonumber(args[4]), call('PTTL', own))))
  return 'ok'
end

register('stage_enter', stage_enter, ADDS)
register('stage_settle', stage_settle, ALLOWED_WHEN_FULL)
register('stage_job', stage_job, ADDS)

end
