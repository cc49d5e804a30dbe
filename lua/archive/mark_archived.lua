-- Mark a task as archived at a version, and let it expire when it would have. A repetition finds the mark.
-- KEYS task     hash: the task's record; archive_hold, archived
-- KEYS journal  hash: entry -> JSON
-- ARGV stamp    version and write that the archive was compared with
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
archive_release(task, { journal }, now_ms())
return { 'OK' }
