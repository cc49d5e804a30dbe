-- Save one version of a task's snapshots, in place of an earlier one of this number, once per call.
-- KEYS rows         hash: version -> row, version: -> id
-- KEYS index        zset: v:version, c:version of checkpoints, i:id:version; all scores are 0
-- ARGV version      its length in three digits, then its number
-- ARGV snapshot_id  of the snapshot, without colons
-- ARGV checkpoint   flag: it is one
-- ARGV row          the snapshot
-- ARGV ttl_ms       of all the task's snapshots, from now
-- Returns
--   {'OK'}
-- @include snapshot_forget
-- @include snapshot_torn
-- @once
-- @idempotent
-- @each
-- @lasting

if snapshot_torn(rows, index) then redis.call('UNLINK', rows, index) end
snapshot_forget(rows, index, version)
redis.call('HSET', rows, version, row, version .. ':', snapshot_id)
redis.call('ZADD', index, 0, 'v:' .. version, 0, 'i:' .. snapshot_id .. ':' .. version)
if checkpoint then redis.call('ZADD', index, 0, 'c:' .. version) end
redis.call('PEXPIRE', rows, ttl_ms)
redis.call('PEXPIRE', index, ttl_ms)
return keep_reply({ 'OK' })
