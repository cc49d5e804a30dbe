-- Name another stream as a registered task's. Its life and its events stay as they are. Once
-- per call: a name given before a repetition stays.
-- KEYS[1] task     hash: stream
-- KEYS[2] call     string: this call's reply, if it was here before
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] stream   the stream's id
-- Returns
--   {'OK'}       done
--   {'MISSING'}  no such task
-- @include call_noted
-- @include call_note
-- @idempotent
local task, call = KEYS[1], KEYS[2]
local keep_ms, stream = ARGV[1], ARGV[2]

local done = call_noted(call)
if done then return done end
if redis.call('EXISTS', task) == 0 then return { 'MISSING' } end
redis.call('HSET', task, 'stream', stream)
return call_note(call, keep_ms, { 'OK' })
