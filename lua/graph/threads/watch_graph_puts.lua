-- Begin to list the checkpoints that are put into a thread, or continue a list that another began.
-- KEYS puts    list: an id, then places of checkpoints
-- ARGV watch   id of a list that begins here
-- ARGV ttl_ms  int: how long the list is kept, from now
-- Returns
--   {'OK', watch, length, last}  id of the list, how long it is, and its last entry

if redis.call('EXISTS', puts) == 0 then redis.call('RPUSH', puts, watch) end
redis.call('PEXPIRE', puts, ttl_ms)
return { 'OK', redis.call('LINDEX', puts, 0), redis.call('LLEN', puts), redis.call('LINDEX', puts, -1) }
