-- Delete an owner's push configurations of an A2A task, one or all, once per call.
-- KEYS[1] push     hash: name -> number and configuration; '' -> the last number
-- KEYS[2] call     string: this call's reply, if it was here before
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] name     of the one, '' for all
-- Returns
--   {'OK', deleted}
-- @include call_noted
-- @include call_note
-- @idempotent
local push, call = KEYS[1], KEYS[2]
local keep_ms, name = ARGV[1], ARGV[2]

local done = call_noted(call)
if done then return done end
local deleted = name ~= '' and redis.call('HDEL', push, name) or math.max(redis.call('HLEN', push) - 1, 0)
local left = redis.call('HLEN', push)
if name == '' or left == 1 and redis.call('HEXISTS', push, '') == 1 then redis.call('DEL', push) end
return call_note(call, keep_ms, { 'OK', deleted })
