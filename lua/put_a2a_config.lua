-- Keep a push configuration of an A2A task; one of the same name is replaced and becomes the last.
-- Once per call: what was put or dropped before a repetition stays so.
-- KEYS[1] push     hash: owner and name -> number and configuration; '' -> the last number
-- KEYS[2] call     string: this call's reply, if it was here before
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] name     owner and name
-- ARGV[3] config   opaque
-- ARGV[4] most     how many a task may have
-- ARGV[5] ttl_ms   milliseconds
-- Returns
--   {'OK', number}
--   {'DENIED', count}   there are so many; nothing was written
-- @include call_noted
-- @include call_note
local push, call = KEYS[1], KEYS[2]
local keep_ms, name, config, most, ttl_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

local done = call_noted(call)
if done then return done end
local count = math.max(redis.call('HLEN', push) - 1, 0)
if count >= most and redis.call('HEXISTS', push, name) == 0 then return { 'DENIED', count } end
local number = redis.call('HINCRBY', push, '', 1)
redis.call('HSET', push, name, string.format('%.0f ', number) .. config)
redis.call('PEXPIRE', push, ttl_ms)
return call_note(call, keep_ms, { 'OK', number })
