-- Save a host's view of a task, unless it is an older view that would bring a finished task back.
-- KEYS[1] task     hash: version, write, order and what is given from finished on
-- KEYS[2] tasks    zset: task_id -> expiry in us
-- ARGV[1] member   the task's id
-- ARGV[2] ttl_ms   how long it lives at least; at most an eighth longer
-- ARGV[3] finished 1 if the new status is final, else 0
-- ARGV[4] write    id of this call
-- ARGV[5] updated_at  microseconds, of the view
-- ARGV[6] status   text
-- ARGV[7] priority digits
-- ARGV[8] document JSON
-- ARGV[9] result   JSON
-- ARGV[10] error   JSON
-- ARGV[11] progress  JSON
-- ARGV[12] updated text, the view's time as the host gave it
-- Returns
--   {'OK', version}     the new version
--   {'STALE', version}  the stored task is finished and newer; nothing was written
-- @include now_us
-- @include record_write
-- @each
local task, tasks = KEYS[1], KEYS[2]
local member, ttl_ms, finished, write, updated_at = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local status, priority, document, result = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local failure, progress, updated = ARGV[10], ARGV[11], ARGV[12]

local was = redis.call('HMGET', task, 'write', 'version', 'order', 'finished', 'updated_at')
if was[4] == '1' and finished == '0' and tonumber(updated_at) <= tonumber(was[5] or 0) then
  return { 'STALE', tonumber(was[2]) }
end
local fields = {
  'finished', finished, 'updated_at', updated_at, 'updated', updated, 'status', status, 'priority', priority,
  'document', document, 'result', result, 'error', failure, 'progress', progress,
}
-- An eighth ahead: most saves need not touch its life, nor its place in the index.
local longest_ms, expiry_us = ttl_ms + math.floor(ttl_ms / 8), was[2] and redis.call('ZSCORE', tasks, member)
local left_ms = expiry_us and (expiry_us - now_us()) / 1000
local lasts = left_ms and left_ms >= ttl_ms and left_ms <= longest_ms
return { 'OK', record_write(task, { key = tasks, member = member }, write, not lasts and longest_ms, fields, was) }
