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
-- @include archive_place

local was = redis.call('HMGET', task, 'version', 'write', 'status')
if not was[3] then return { 'MISSING' } end
local is = (was[1] or '0') .. ' ' .. (was[2] or '')
if is ~= stamp then return { 'STALE', is } end
-- The release first: behind it a full server lets the mark pass.
local held, ends = archive_release(task, { journal }, now_ms())
redis.call('HSET', task, 'archived', stamp)
if ends then archive_place_release(tasks, task_id, held, ends) end
return { 'OK' }
