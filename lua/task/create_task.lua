-- Write a new pending task down, unless there is one of this id. What an earlier task of the same
-- id recorded, received and spawned is not this one's. A repetition finds the task.
-- KEYS task                hash: version, write, order and the fields given, inbox
-- KEYS tasks               zset: task_id -> expiry in us
-- KEYS journal             hash: entry -> JSON
-- KEYS steering.ids        hash: ids of the session's steering
-- KEYS lease               hash: epoch; there if an earlier task of this id ran
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS announcement.topic_rows  list: n of the task's updates; there if an earlier task of this id told any
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
-- @include announce
-- @include log_head
-- @include record_write

local was = redis.call('HMGET', task, 'version', 'write')
if was[1] and was[2] ~= write then return { 'STALE', tonumber(was[1]) } end
if was[1] then return { 'OK', tonumber(was[1]) } end
-- A sweeper that twice finds no task takes its entry out of the watch list.
if before and now_ms() > before then return { 'EXPIRED' } end
-- Of the first task of an id, what was said of it before it was made counts too.
if redis.call('EXISTS', lease, announcement.topic_rows) > 0 then
  local told = log_head(redis.call('HGET', steering.ids, ''))
  fields[#fields + 1] = 'inbox'
  fields[#fields + 1] = string.format('%.0f-%.0f', told.last, told.last_ms)
end
redis.call('DEL', journal, children)
announce(announcement, task_id, now_ms())
return { 'OK', record_write(task, { key = tasks, member = task_id }, write, ttl_ms, fields) }
