-- Move a job that waits in its queue, once per call.
-- KEYS queue       zset: job id -> when it is due, in ms
-- ARGV id          the job's id
-- ARGV earlier_ms  int: by how much it is due earlier
-- Returns
--   {'OK', moved}  1 if it waited
-- @once

if not redis.call('ZSCORE', queue, id) then return keep_reply({ 'OK', 0 }) end
redis.call('ZINCRBY', queue, string.format('%.0f', -earlier_ms), id)
return keep_reply({ 'OK', 1 })
