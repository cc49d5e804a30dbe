-- Drop a registered task that ended before a moment, and all that is left of one that is gone.
-- KEYS[1] task     hash: completed
-- KEYS[2] active   zset: task_id -> expiry in ms
-- KEYS[3] completed  zset: task_id -> its end in us
-- KEYS[4] kept     zset: task_id of a completed one -> expiry in ms
-- KEYS[5] rows     stream: its events
-- KEYS[6] ids      hash: event id -> n
-- ARGV[1] member   the task's id
-- ARGV[2] before   in us
-- Returns
--   {'OK'}       it is dropped, by this call
--   {'STALE'}    it is active, or ended later; nothing was written
--   {'MISSING'}  it was gone before
local task, active, completed, kept, rows, ids = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local member, before = ARGV[1], tonumber(ARGV[2])

local there = redis.call('EXISTS', task) == 1
local ended = tonumber(redis.call('HGET', task, 'completed'))
if there and not (ended and ended < before) then return { 'STALE' } end
redis.call('UNLINK', task, rows, ids)
for _, list in ipairs({ active, completed, kept }) do redis.call('ZREM', list, member) end
if there then return { 'OK' } end
return { 'MISSING' }
