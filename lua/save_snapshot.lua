-- Save one version of a task's snapshots, in place of an earlier one of this number.
-- KEYS[1] rows     hash: version -> row, version: -> id
-- KEYS[2] index    zset: v:version, c:version of checkpoints, i:id:version; all scores are 0
-- ARGV[1] version  its length in three digits, then its number
-- ARGV[2] id       of the snapshot, without colons
-- ARGV[3] checkpoint  1 or 0
-- ARGV[4] row      the snapshot
-- ARGV[5] ttl_ms   of all the task's snapshots, from now
-- Returns
--   {'OK'}
-- @include snapshot_forget
-- @each
local rows, index = KEYS[1], KEYS[2]
local version, id, checkpoint, row, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- One of the two alone is what an eviction left.
if redis.call('EXISTS', rows, index) == 1 then redis.call('UNLINK', rows, index) end
snapshot_forget(rows, index, version)
redis.call('HSET', rows, version, row, version .. ':', id)
redis.call('ZADD', index, 0, 'v:' .. version, 0, 'i:' .. id .. ':' .. version)
if checkpoint == '1' then redis.call('ZADD', index, 0, 'c:' .. version) end
redis.call('PEXPIRE', rows, ttl_ms)
redis.call('PEXPIRE', index, ttl_ms)
return { 'OK' }
