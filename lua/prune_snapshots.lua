-- Delete all but the newest versions of a task's snapshots, and but its checkpoints if they are kept.
-- KEYS[1] rows     hash: version -> row, version: -> id
-- KEYS[2] index    zset: v:version, c:version of checkpoints, i:id:version
-- KEYS[3] removal  string: the last removal's call and answer
-- ARGV[1] keep_last  how many of the highest versions stay
-- ARGV[2] keep_checkpoints  1 or 0
-- ARGV[3] write    id of this call
-- Returns
--   {'OK', removed}  how many were deleted
-- @include call_noted
-- @include call_note
-- @include snapshot_forget
local rows, index, removal = KEYS[1], KEYS[2], KEYS[3]
local keep_last, keep_checkpoints, write = tonumber(ARGV[1]), ARGV[2] == '1', ARGV[3]

local done = call_noted(removal, write)
if done then return { 'OK', tonumber(done) } end
local older = redis.call('ZLEXCOUNT', index, '[v:', '(v;') - keep_last
local removed = 0
for _, entry in ipairs(older > 0 and redis.call('ZRANGEBYLEX', index, '[v:', '(v;', 'LIMIT', 0, older) or {}) do
  local version = string.sub(entry, 3)
  if not (keep_checkpoints and redis.call('ZSCORE', index, 'c:' .. version)) then
    removed = removed + snapshot_forget(rows, index, version)
  end
end
if removed > 0 then call_note(removal, write, removed) end
return { 'OK', removed }
