-- Set a task pending that waits for the end of a child, if that is over or gone; else have the task
-- live on for as long as it may have to wait.
-- KEYS[1] task     hash: version, write, order, status, waits_for and the fields given
-- KEYS[2] tasks    zset: task_id -> expiry in us
-- KEYS[3] lease    hash: epoch
-- KEYS[4] rows     stream of the session's updates
-- KEYS[5] ids      hash: its ids
-- KEYS[6] topic_rows  list: the task's index in it
-- KEYS[7] channel  pub/sub
-- KEYS[8] child    hash: finished
-- KEYS[9] journal  hash: entry -> JSON; lives as long as the task
-- ARGV[1] child_id whose end is told
-- ARGV[2] write    id of this call
-- ARGV[3] ttl_ms   of the task
-- ARGV[4] member   the task's id
-- ARGV[5] max_rows of the updates
-- ARGV[6] log_ttl_ms  of the updates
-- ARGV[7] row_id   update id
-- ARGV[8] row      the update that tells of it
-- ARGV[9..] fields names and values, in turn
-- Returns
--   {'OK', version}     it is pending
--   {'HELD'}            the child is not over
--   {'DENIED', status}  the task does not wait for this child; nothing was written
--   {'MISSING'}         no such task
-- Emits the update on channel
-- @include now_ms
-- @include record_write
-- @include log_append
local task, tasks, lease, child, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[8], KEYS[9]
local log = { rows = KEYS[4], ids = KEYS[5], topic_rows = KEYS[6], channel = KEYS[7] }
local child_id, write, ttl_ms, member = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
log.topic, log.max_rows, log.ttl_ms = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local row_id, row = ARGV[7], ARGV[8]
local fields = { unpack(ARGV, 9) }

local was = redis.call('HMGET', task, 'status', 'waits_for', 'write', 'version')
if not was[1] then return { 'MISSING' } end
if was[3] == write then return { 'OK', tonumber(was[4]) } end
if was[1] ~= 'PAUSED' or was[2] ~= child_id then return { 'DENIED', was[1] } end
local over, now = redis.call('HGET', child, 'finished') ~= '0', now_ms()
for _, key in ipairs({ task, tasks, lease, journal }) do
  if redis.call('PTTL', key) < ttl_ms then redis.call('PEXPIRE', key, ttl_ms) end
end
if not over then
  redis.call('ZADD', tasks, 'GT', string.format('%.0f', (now + ttl_ms) * 1000), member)
  return { 'HELD' }
end
log_append(log, row_id, row, now)
return { 'OK', record_write(task, { key = tasks, member = member }, write, ttl_ms, fields) }
