-- Set a task pending that waits for messages, if one is there or the timeout has expired. A repetition finds its write.
-- KEYS task                     hash: version, write, order, status, waits_box, waits_until, waits_ms,
--   waits_for, pause_token, pause_write and the fields given
-- KEYS tasks                    zset: task_id -> expiry in us
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS journal                  hash: box:<box>; lives as long as the task
-- ARGV announcement.channel     channel
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
--   {'HELD', left_ms}   nothing is there, and there is still time
--   {'DENIED', status}  the task does not wait for messages; nothing was written
--   {'MISSING'}         no such task
-- Emits the update on channel
-- @include now_ms
-- @include record_write
-- @include announce
-- @include mail
-- @include mail_there

local was = redis.call('HMGET', task, 'status', 'waits_box', 'waits_for', 'pause_token', 'waits_until', 'write',
  'version', 'waits_ms', 'pause_write')
if not was[1] then return { 'MISSING' } end
if was[6] == write then return { 'OK', tonumber(was[7]) } end
if was[1] ~= 'PAUSED' or not mail_waits(was[2], was[3], was[4]) then return { 'DENIED', was[1] } end
local now = now_ms()
local left_ms = (tonumber(was[5]) or 0) - now
if left_ms > 0 and not mail_there(journal, was[2]) then
  local length_ms, of = string.match(was[8] or '', '^(%d+) (.*)$')
  length_ms = tonumber(length_ms)
  -- An earlier version of the library leaves the length of a wait before.
  if length_ms and of == was[9] and left_ms > length_ms then
    -- The clock was set back: from now on it waits for its length.
    left_ms = length_ms
    -- A full server refuses what may add. After any removal it lets this pass too.
    redis.call('HDEL', task, '')
    redis.call('HSET', task, 'waits_until', string.format('%.0f', now + length_ms))
  end
  return { 'HELD', left_ms }
end
announce(announcement, task_id, now)
local version = record_write(task, { key = tasks, member = task_id }, write, ttl_ms, fields)
redis.call('PEXPIREAT', journal, redis.call('PEXPIRETIME', task))
return { 'OK', version }
