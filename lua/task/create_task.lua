-- Write a new pending task down, unless there is one of this id. What an earlier task of the same
-- id recorded, received and spawned is not this one's. A repetition finds the task.
-- KEYS keys.task           hash: version, write, order and the fields given, inbox
-- KEYS keys.tasks          zset: task_id -> expiry in us
-- KEYS keys.journal        hash: entry -> JSON
-- KEYS steering.ids        hash: ids of the session's steering
-- KEYS keys.lease          hash: epoch; there if an earlier task of this id ran
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS children            zset: what an earlier task of this id has spawned
-- ARGV announcement.channel     channel
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of the new task
-- ARGV write               id of this call
-- ARGV ttl_ms              int: milliseconds
-- ARGV task_id             the task's id
-- ARGV before              int: ms, by when it must be written; '' for any time
-- ARGV fields..            names and values, in turn
-- Returns
--   {'OK', version}     it is written
--   {'STALE', version}  there is one; nothing was written
--   {'EXPIRED'}         it is too late; nothing was written
-- Emits the update on channel
-- @include now_ms
-- @include task_new
-- @each

local known, mine = task_known(keys.task, write)
if known and not mine then return { 'STALE', known } end
if known then return { 'OK', known } end
local now = now_ms()
-- A sweeper that twice finds no task takes its entry out of the watch list.
if before and now > before then return { 'EXPIRED' } end
return { 'OK', task_new(keys, children, steering, announcement, fields, write, ttl_ms, task_id, now) }
