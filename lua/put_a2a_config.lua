-- Keep a push configuration of an A2A task; one of the same name is replaced and becomes the last.
-- Once per call: what was put or dropped before a repetition stays so.
-- KEYS[1] push     hash: name -> number and configuration; '' -> the last number
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] task     hash: phase; need not be there yet
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] name     of the configuration
-- ARGV[3] config   opaque
-- ARGV[4] most     how many a task may have
-- ARGV[5] ttl_ms   milliseconds, while there is no task; else they live as long as it does
-- Returns
--   {'OK', number}
--   {'DENIED', count}   there are so many; nothing was written
--   {'MISSING'}         the task was deleted
-- @include call_noted
-- @include call_note
-- @idempotent
local push, call, task = KEYS[1], KEYS[2], KEYS[3]
local keep_ms, name, config, most, ttl_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local done = call_noted(call)
if done then return done end
if redis.call('HGET', task, 'phase') == 'g' then return { 'MISSING' } end
local count = math.max(redis.call('HLEN', push) - 1, 0)
if count >= most and redis.call('HEXISTS', push, name) == 0 then return { 'DENIED', count } end
local number = redis.call('HINCRBY', push, '', 1)
redis.call('HSET', push, name, string.format('%.0f ', number) .. config)
local left_ms = redis.call('PTTL', task)
redis.call('PEXPIRE', push, left_ms > 0 and left_ms or ttl_ms)
return call_note(call, keep_ms, { 'OK', number })
