-- Make the highest version that has an entry beginning with a prefix the latest of its task, once per
-- call: those above it are deleted.
-- KEYS rows    hash: version -> row, version: -> id
-- KEYS index   zset: v:version, c:version of checkpoints, i:id:version
-- ARGV prefix  of an entry
-- Returns
--   {'OK', version, row}  the version that is the latest now
--   {'MISSING'}  there is none such; nothing was deleted
--   {'GAP'}      a part of the task's snapshots was evicted; nothing was deleted
-- @include snapshot_forget
-- @include snapshot_top
-- @include snapshot_torn
-- @once
-- @idempotent

if snapshot_torn(rows, index) then return keep_reply({ 'GAP' }) end
local version = snapshot_top(index, prefix)
local row = version and redis.call('HGET', rows, version)
if not row then return keep_reply({ 'MISSING' }) end
for _, entry in ipairs(redis.call('ZRANGEBYLEX', index, '(v:' .. version, '(v;')) do
  snapshot_forget(rows, index, string.sub(entry, 3))
end
return keep_reply({ 'OK', version, row })
