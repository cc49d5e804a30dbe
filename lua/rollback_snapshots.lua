-- Make the highest version that has an entry beginning with a prefix the latest of its task, once per
-- call: those above it are deleted.
-- KEYS[1] rows     hash: version -> row, version: -> id
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] index    zset: v:version, c:version of checkpoints, i:id:version
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] prefix   of an entry
-- Returns
--   {'OK', version, row}  the version that is the latest now
--   {'MISSING'}  there is none such; nothing was deleted
-- @include call_noted
-- @include call_note
-- @include snapshot_forget
-- @include snapshot_top
-- @idempotent
local rows, call, index = KEYS[1], KEYS[2], KEYS[3]
local keep_ms, prefix = ARGV[1], ARGV[2]

local done = call_noted(call)
if done then return done end
local version = snapshot_top(index, prefix)
local row = version and redis.call('HGET', rows, version)
if not row then return call_note(call, keep_ms, { 'MISSING' }) end
for _, entry in ipairs(redis.call('ZRANGEBYLEX', index, '(v:' .. version, '(v;')) do
  snapshot_forget(rows, index, string.sub(entry, 3))
end
return call_note(call, keep_ms, { 'OK', version, row })
