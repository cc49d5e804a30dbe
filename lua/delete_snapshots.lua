-- Delete one version of a task's snapshots, or all of them, once per call.
-- KEYS[1] rows     hash: version -> row, version: -> id
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] index    zset: v:version, c:version of checkpoints, i:id:version
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] version  '' for all
-- Returns
--   {'OK', removed}  how many there were
-- @include call_noted
-- @include call_note
-- @include snapshot_forget
-- @idempotent
local rows, call, index = KEYS[1], KEYS[2], KEYS[3]
local keep_ms, version = ARGV[1], ARGV[2]

local done = call_noted(call)
if done then return done end
local removed
if version == '' then
  removed = redis.call('ZLEXCOUNT', index, '[v:', '(v;')
  redis.call('UNLINK', rows, index)
else
  removed = snapshot_forget(rows, index, version)
end
return call_note(call, keep_ms, { 'OK', removed })
