-- Delete all but the newest versions of a task's snapshots, and but its checkpoints if they are kept,
-- once per call.
-- KEYS rows              hash: version -> row, version: -> id
-- KEYS index             zset: v:version, c:version of checkpoints, i:id:version
-- ARGV keep_last         int: how many of the highest versions stay
-- ARGV keep_checkpoints  flag: they stay
-- Returns
--   {'OK', removed}  how many were deleted
-- @include snapshot_forget
-- @once
-- @idempotent

local older = redis.call('ZLEXCOUNT', index, '[v:', '(v;') - keep_last
local removed = 0
for _, entry in ipairs(older > 0 and redis.call('ZRANGEBYLEX', index, '[v:', '(v;', 'LIMIT', 0, older) or {}) do
  local version = string.sub(entry, 3)
  if not (keep_checkpoints and redis.call('ZSCORE', index, 'c:' .. version)) then
    removed = removed + snapshot_forget(rows, index, version)
  end
end
return keep_reply({ 'OK', removed })
