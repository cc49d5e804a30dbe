-- Drop a registered task that ended before a moment, and all that is left of one that is gone,
-- once per call.
-- KEYS[1] task     hash: completed
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] active   zset: task_id -> expiry in ms
-- KEYS[4] completed  zset: task_id -> its end in us
-- KEYS[5] kept     zset: task_id of a completed one -> expiry in ms
-- KEYS[6] rows     stream: its events
-- KEYS[7] ids      hash: event id -> n
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] member   the task's id
-- ARGV[3] before   in us
-- Returns
--   {'OK'}       it is dropped, by this call
--   {'STALE'}    it is active, or ended later; nothing was written
--   {'MISSING'}  it was gone before
-- @include call_noted
-- @include call_note
-- @idempotent
local task, call, active, completed, kept = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local rows, ids = KEYS[6], KEYS[7]
local keep_ms, member, before = ARGV[1], ARGV[2], tonumber(ARGV[3])

local done = call_noted(call)
if done then return done end
local there = redis.call('EXISTS', task) == 1
local ended = tonumber(redis.call('HGET', task, 'completed'))
if there and not (ended and ended < before) then return { 'STALE' } end
redis.call('UNLINK', task, rows, ids)
for _, list in ipairs({ active, completed, kept }) do redis.call('ZREM', list, member) end
return call_note(call, keep_ms, there and { 'OK' } or { 'MISSING' })
