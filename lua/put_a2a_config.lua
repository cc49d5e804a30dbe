-- Keep a push configuration of an A2A task; one of the same name is replaced and becomes the last.
-- KEYS[1] push     hash: name -> number and configuration; '' -> the last number
-- KEYS[2] task     hash: phase; need not be there yet
-- ARGV[1] name     of the configuration
-- ARGV[2] config   opaque
-- ARGV[3] most     how many a task may have
-- ARGV[4] ttl_ms   milliseconds, while there is no task; else they live as long as it does
-- Returns
--   {'OK', number}
--   {'DENIED', count}   there are so many; nothing was written
--   {'MISSING'}         the task was deleted
local push, task = KEYS[1], KEYS[2]
local name, config, most, ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

if redis.call('HGET', task, 'phase') == 'g' then return { 'MISSING' } end
local count = math.max(redis.call('HLEN', push) - 1, 0)
if count >= most and redis.call('HEXISTS', push, name) == 0 then return { 'DENIED', count } end
local number = redis.call('HINCRBY', push, '', 1)
redis.call('HSET', push, name, string.format('%.0f ', number) .. config)
local left_ms = redis.call('PTTL', task)
redis.call('PEXPIRE', push, left_ms > 0 and left_ms or ttl_ms)
return { 'OK', number }
