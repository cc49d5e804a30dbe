-- Save a host's view of a task, unless it is an older view that would bring a finished task back. A repetition is
-- known among the last eight saves, so what others saved since stays.
-- KEYS task           hash: version, write, order, saves, archive_hold and what is given from finished on; saves: of
--   the last calls the end of the write
-- KEYS tasks          zset: task_id -> expiry in us
-- ARGV task_id        the task's id
-- ARGV ttl_ms         int: how long it lives at least; at most an eighth longer
-- ARGV finished       1 if the new status is final, else 0
-- ARGV write          id of this call
-- ARGV updated_at_us  microseconds, of the view
-- ARGV values..       status, priority, document, result, error, progress and the view's time as
--   the host gave it
-- Returns
--   {'OK', version}     the new version; that of now for a repetition
--   {'STALE', version}  the stored task is finished and newer; nothing was written
-- @include now_us
-- @include record_saves
-- @include record_write
-- @each
-- @lasting

local status, priority, document, result, failure, progress, updated = unpack(values)
local was = redis.call('HMGET', task, 'write', 'version', 'order', 'finished', 'updated_at', 'saves')
if was[1] == write or saves_has(was[6], write) then return { 'OK', tonumber(was[2]) } end
if was[4] == '1' and finished == '0' and tonumber(updated_at_us) <= tonumber(was[5] or 0) then
  return { 'STALE', tonumber(was[2]) }
end
local fields = {
  'finished', finished, 'updated_at', updated_at_us, 'updated', updated, 'status', status, 'priority', priority,
  'document', document, 'result', result, 'error', failure, 'progress', progress,
  'saves', saves_with(was[6], write),
}
-- An eighth ahead: most saves need not touch its life, nor its place in the index.
local longest_ms, expiry_us = ttl_ms + math.floor(ttl_ms / 8), was[2] and redis.call('ZSCORE', tasks, task_id)
local left_ms = expiry_us and (expiry_us - now_us()) / 1000
local lasts = left_ms and left_ms >= ttl_ms and left_ms <= longest_ms
-- What is held for the archive stays held, as its journal does. Let go, it lives as long as from this save. A task that
-- is opened again is not: no archiver looks at it.
local held = string.match(redis.call('HGET', task, 'archive_hold') or '', ' (%d+)$')
if held and finished == '1' and redis.call('PEXPIRETIME', task) == tonumber(held) and left_ms and left_ms > longest_ms then
  lasts = true
  fields[#fields + 1] = 'archive_hold'
  fields[#fields + 1] = string.format('%.0f', now_us() / 1000 + longest_ms) .. ' ' .. held
end
return { 'OK', record_write(task, { key = tasks, member = task_id }, write, not lasts and longest_ms, fields, was) }
