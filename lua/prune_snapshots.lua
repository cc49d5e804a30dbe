-- Delete all but the newest versions of a task's snapshots, and but its checkpoints if they are kept,
-- once per call.
-- KEYS[1] rows     hash: version -> row, version: -> id
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] index    zset: v:version, c:version of checkpoints, i:id:version
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] keep_last  how many of the highest versions stay
-- ARGV[3] keep_checkpoints  1 or 0
-- Returns
--   {'OK', removed}  how many were deleted
-- @include call_noted
-- @include call_note
-- @include snapshot_forget
-- @idempotent
local rows, call, index = KEYS[1], KEYS[2], KEYS[3]
local keep_ms, keep_last, keep_checkpoints = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

local done = call_noted(call)
if done then return done end
local older = redis.call('ZLEXCOUNT', index, '[v:', '(v;') - keep_last
local removed = 0
for _, entry in ipairs(older > 0 and redis.call('ZRANGEBYLEX', index, '[v:', '(v;', 'LIMIT', 0, older) or {}) do
  local version = string.sub(entry, 3)
  if not (keep_checkpoints and redis.call('ZSCORE', index, 'c:' .. version)) then
    removed = removed + snapshot_forget(rows, index, version)
  end
end
return call_note(call, keep_ms, { 'OK', removed })
