-- Runs of schedules. Any number of processes try; the queue itself knows which due times it has.
--   sc  hash: schedule -> version of its definition and the last due time that was published here

-- The answer: for each run `+` (published), `=` (was published before) or `!` and why not; the runs after a queue that
-- is full are missing. `stale`: the caller must read the schedule again. now, name, version, until when the caller's
-- knowledge counts, then due time, record and options of each run
register('run_schedule', on_queue(function(Q, args)
  local name, version = args[2], tonumber(args[3])
  local key, n = Q.p .. 'sc', (#args - 4) / 3
  if Q.now > tonumber(args[4]) then return {'stale'} end
  if Q.seq + n > Q.last then return nil, failure('BLOCK') end
  local known, last = match(call('HGET', key, name) or '', '^(%d+) (%d+)$')
  if known and tonumber(known) > version then return {'stale'} end
  last = tonumber(known) == version and tonumber(last) or -1
  local answers = {}
  for i = 1, n do
    local at = 2 + i * 3
    if tonumber(args[at]) <= last then
      answers[i] = '='
    else
      local published, refused = publish_all(Q, {args[at + 1], args[at + 2]}, 0)
      if refused then return nil, refused end
      local answer = published[1]
      answers[i] = sub(answer, 1, 1) == '!' and answer or '+'
      if sub(answer, 1, 5) == '!full' and Q.c.of ~= 'reject-dead-letter' then break end
      call('HSET', key, name, args[3] .. ' ' .. args[at])
    end
  end
  return answers
end), ADDS)

-- now, name
register('forget_schedule', on_queue(function(Q, args)
  return call('HDEL', Q.p .. 'sc', args[2])
end), ALLOWED_WHEN_FULL)
