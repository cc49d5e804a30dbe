-- Save one version of a task's snapshots, in place of an earlier one of this number, once per call.
-- KEYS[1] rows     hash: version -> row, version: -> id
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] index    zset: v:version, c:version of checkpoints, i:id:version; all scores are 0
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] version  its length in three digits, then its number
-- ARGV[3] id       of the snapshot, without colons
-- ARGV[4] checkpoint  1 or 0
-- ARGV[5] row      the snapshot
-- ARGV[6] ttl_ms   of all the task's snapshots, from now
-- Returns
--   {'OK'}
-- @include call_noted
-- @include call_note
-- @include snapshot_forget
-- @idempotent
-- @each
local rows, call, index = KEYS[1], KEYS[2], KEYS[3]
local keep_ms, version, id, checkpoint, row, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local done = call_noted(call)
if done then return done end
-- One of the two alone is what an eviction left.
if redis.call('EXISTS', rows, index) == 1 then redis.call('UNLINK', rows, index) end
snapshot_forget(rows, index, version)
redis.call('HSET', rows, version, row, version .. ':', id)
redis.call('ZADD', index, 0, 'v:' .. version, 0, 'i:' .. id .. ':' .. version)
if checkpoint == '1' then redis.call('ZADD', index, 0, 'c:' .. version) end
redis.call('PEXPIRE', rows, ttl_ms)
redis.call('PEXPIRE', index, ttl_ms)
return call_note(call, keep_ms, { 'OK' })
