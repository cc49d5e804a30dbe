-- Keep a push configuration of an A2A task; one of the same name is replaced and becomes the last.
-- KEYS[1] push     hash: owner and name -> number and configuration; '' -> the last number
-- ARGV[1] name     owner and name
-- ARGV[2] config   opaque
-- ARGV[3] most     how many a task may have
-- ARGV[4] ttl_ms   milliseconds
-- Returns
--   {'OK', number}
--   {'DENIED', count}   there are so many; nothing was written
local push = KEYS[1]
local name, config, most, ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local count = math.max(redis.call('HLEN', push) - 1, 0)
if count >= most and redis.call('HEXISTS', push, name) == 0 then return { 'DENIED', count } end
local number = redis.call('HINCRBY', push, '', 1)
redis.call('HSET', push, name, string.format('%.0f ', number) .. config)
redis.call('PEXPIRE', push, ttl_ms)
return { 'OK', number }
