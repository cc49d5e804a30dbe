-- Return what decides about a task, and how long its owner's lease still is.
-- KEYS task   hash: status, version, order, priority, crashes, queue, parent, isolate, waits_for,
--   parent_order, attempts, due, flow_key, waits_box, pause_token, write, retries, parent_retry,
--   updated_at, job, due_at
-- KEYS lease  hash: owner, epoch, expires, length
-- Returns
--   {'OK', epoch, left_ms, values}  left_ms is 0 if nobody holds it; the values of the task's fields, nil
--                    for one that is not there; of job only whether it is there: for a task that workers run; due
--                    is the end of a delay as it is by the clock of now
--   {'MISSING'}      no such task
-- @include lease_left
-- @include now_ms
-- @each

local values = redis.call('HMGET', task, 'status', 'version', 'order', 'priority', 'crashes', 'queue',
  'parent', 'isolate', 'waits_for', 'parent_order', 'attempts', 'due', 'flow_key', 'waits_box',
  'pause_token', 'write', 'retries', 'parent_retry', 'updated_at')
if not values[1] then return { 'MISSING' } end
values[#values + 1] = redis.call('HEXISTS', task, 'job') == 1 and ''
local now = now_ms()
local ahead = tonumber(values[3] or 0) / 1000 - now
-- The clock was set back since the task was written. A delay is no longer than its length; a given moment stays.
if ahead > 0 and values[12] and redis.call('HEXISTS', task, 'due_at') == 0 then
  values[12] = string.format('%.0f', values[12] - ahead)
end
return { 'OK', tonumber(redis.call('HGET', lease, 'epoch')) or 0, lease_left(lease, now), values }
