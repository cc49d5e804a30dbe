-- Set a task pending that waits for the end of a child, if the child has ended or is gone. Else extend
-- the task's lifetime for the wait.
-- KEYS task                     hash: version, write, order, status, waits_for and the fields given
-- KEYS tasks                    zset: task_id -> expiry in us
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS child.task               hash: finished
-- KEYS journal                  hash: entry -> JSON; lives as long as the task
-- ARGV announcement.channel     channel
-- ARGV child.task_id            whose end is reported
-- ARGV write                    id of this call
-- ARGV ttl_ms                   int: of the task
-- ARGV task_id                  the task's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of it
-- ARGV fields..                 names and values, in turn
-- Returns
--   {'OK', version}     it is pending
--   {'HELD'}            the child is not over
--   {'DENIED', status}  the task does not wait for this child; nothing was written
--   {'MISSING'}         no such task
-- Emits the update on channel
-- @include now_ms
-- @include record_write
-- @include announce

local was = redis.call('HMGET', task, 'status', 'waits_for', 'write', 'version')
if not was[1] then return { 'MISSING' } end
if was[3] == write then return { 'OK', tonumber(was[4]) } end
if was[1] ~= 'PAUSED' or was[2] ~= child.task_id then return { 'DENIED', was[1] } end
local over, now = redis.call('HGET', child.task, 'finished') ~= '0', now_ms()
for _, key in ipairs({ task, tasks, journal }) do
  if redis.call('PTTL', key) < ttl_ms then redis.call('PEXPIRE', key, ttl_ms) end
end
if not over then
  redis.call('ZADD', tasks, 'GT', string.format('%.0f', (now + ttl_ms) * 1000), task_id)
  return { 'HELD' }
end
announce(announcement, task_id, now)
return { 'OK', record_write(task, { key = tasks, member = task_id }, write, ttl_ms, fields) }
