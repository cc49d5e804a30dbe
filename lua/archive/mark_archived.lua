-- Mark a task as archived at a version, and let it expire when it would have. A repetition finds the mark.
-- KEYS task      hash: the task's record; archive_hold, archived
-- KEYS tasks     zset: task_id -> expiry in us
-- KEYS journal   hash: entry -> JSON
-- ARGV task_id   the task's id
-- ARGV stamp     version and write that the archive was compared with
-- Returns
--   {'OK'}            it is marked
--   {'STALE', stamp}  the task has changed since; nothing was written
--   {'MISSING'}       no such task
-- @include now_ms
-- @include archive_hold

local was = redis.call('HMGET', task, 'version', 'write', 'status')
if not was[3] then return { 'MISSING' } end
local is = (was[1] or '0') .. ' ' .. (was[2] or '')
if is ~= stamp then return { 'STALE', is } end
redis.call('HSET', task, 'archived', stamp)
local held, ends = archive_release(task, { journal }, now_ms())
if not ends or tonumber(redis.call('ZSCORE', tasks, task_id)) ~= held * 1000 then return { 'OK' } end
redis.call('ZADD', tasks, string.format('%.0f', ends * 1000), task_id)
local last = redis.call('ZRANGE', tasks, -1, -1, 'WITHSCORES')[2]
if last ~= 'inf' then redis.call('PEXPIREAT', tasks, string.format('%.0f', math.ceil(tonumber(last) / 1000))) end
return { 'OK' }
