-- Take the jobs of a session's tasks that wait out of a queue, once per call, with their keys. The session's line goes
-- with its last job. What is claimed stays.
-- KEYS keys.queue   zset: job id -> when it is due, in ms
-- KEYS keys.owners  hash: id -> its lane, key and place, later:<id> -> key, parked:<task> -> id and version
-- KEYS keys.flow    hash: turn
-- KEYS keys.keyed   zset: lane, key, place and id of each job that has a key or a lane, in order
-- KEYS keys.heads   zset: limit key, place and line of each session's line that stands in a limit key's
-- KEYS keys.turns   zset: line -> when it had its turn
-- KEYS keys.waits   zset: line -> when it takes its turn again, in ms
-- KEYS keys.rates   zset: line -> when all of its rate is there again, in ms
-- ARGV line         of the session's tasks in turn
-- ARGV jobs..       their ids
-- Returns
--   {'OK', removed}  how many waited there
-- @include line_again
-- @once

local removed = 0
for _, id in ipairs(jobs) do
  local owner = redis.call('HGET', keys.owners, id)
  -- What stands for the line in that of a limit key names the line.
  local head = owner and flow_head(keys, line)
  redis.call('HDEL', keys.owners, id, 'later:' .. id)
  removed = removed + redis.call('ZREM', keys.queue, id)
  if owner then
    redis.call('HDEL', keys.owners, 'parked:' .. (string.match(id, '^(.*):%d+$') or id))
    removed = removed + redis.call('ZREM', keys.keyed, line_member(owner, id))
    if head and head ~= flow_head(keys, line) then
      redis.call('ZREM', keys.heads, head)
      line_again(keys, line)
    end
  end
end
if not flow_first(keys.keyed, line) then
  for _, each in ipairs({ keys.turns, keys.waits, keys.rates }) do redis.call('ZREM', each, line) end
end
return keep_reply({ 'OK', removed })
