-- Save or delete a push configuration of an A2A task, once per call: what another call wrote
-- before a repetition stays.
-- KEYS[1] task     hash: an A2A task
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] push     hash: config_id -> config
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] config_id  text
-- ARGV[3] config   JSON, '' deletes it
-- Returns
--   {'OK'}       done
--   {'MISSING'}  no such task
-- @include call_noted
-- @include call_note
-- @idempotent
local task, call, push = KEYS[1], KEYS[2], KEYS[3]
local keep_ms, config_id, config = ARGV[1], ARGV[2], ARGV[3]

local done = call_noted(call)
if done then return done end
local ends = redis.call('PEXPIRETIME', task)
if ends == -2 then return { 'MISSING' } end
if config == '' then
  redis.call('HDEL', push, config_id)
else
  redis.call('HSET', push, config_id, config)
  redis.call('PEXPIREAT', push, ends)
end
return call_note(call, keep_ms, { 'OK' })
