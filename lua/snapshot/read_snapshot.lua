-- Read the snapshot of the highest version that has an entry beginning with a prefix.
-- KEYS rows    hash: version -> row
-- KEYS index   zset: v:version, c:version of checkpoints, i:id:version
-- ARGV prefix  of an entry
-- Returns
--   {'OK', version, row}
--   {'MISSING'}  there is none
--   {'GAP'}      a part of the task's snapshots was evicted
-- @include snapshot_top
-- @include snapshot_torn

if snapshot_torn(rows, index) then return { 'GAP' } end
local version = snapshot_top(index, prefix)
local row = version and redis.call('HGET', rows, version)
if not row then return { 'MISSING' } end
return { 'OK', version, row }
