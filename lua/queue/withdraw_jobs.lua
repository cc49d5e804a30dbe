-- Take jobs out of a queue's own list, once per call, and with them the keys of those that are put off.
-- KEYS keys.queue   zset: job id -> when it is due, in ms
-- KEYS keys.owners  hash: later:<id> -> key
-- ARGV jobs..       their ids
-- Returns
--   {'OK', removed}  how many waited there
-- @once

local removed = 0
for _, id in ipairs(jobs) do
  redis.call('HDEL', keys.owners, 'later:' .. id)
  removed = removed + redis.call('ZREM', keys.queue, id)
end
return keep_reply({ 'OK', removed })
