-- Keep a push configuration of an A2A task; one of the same name is replaced and becomes the last.
-- Once per call: what was put or dropped before a repetition stays so.
-- KEYS configs  hash: name -> number and configuration; '' -> the last number
-- KEYS task     hash: phase
-- ARGV name     of the configuration
-- ARGV config   opaque
-- ARGV most     int: how many a task may have, 0 for any number
-- ARGV ttl_ms   int: while there is no task, 0 to refuse that; else they live as long as it does
-- Returns
--   {'OK', number}
--   {'DENIED', count}   there are so many; nothing was written
--   {'MISSING'}         the task was deleted, or must be there and is not
-- @once
-- @idempotent

local phase = redis.call('HGET', task, 'phase')
if phase == 'g' or not phase and ttl_ms == 0 then return { 'MISSING' } end
local count = math.max(redis.call('HLEN', configs) - 1, 0)
if most > 0 and count >= most and redis.call('HEXISTS', configs, name) == 0 then return { 'DENIED', count } end
local number = redis.call('HINCRBY', configs, '', 1)
redis.call('HSET', configs, name, string.format('%.0f ', number) .. config)
local left_ms = redis.call('PTTL', task)
if left_ms > 0 or ttl_ms > 0 then redis.call('PEXPIRE', configs, left_ms > 0 and left_ms or ttl_ms) end
return keep_reply({ 'OK', number })
