-- Return what decides about a task, and how long its owner's lease still is.
-- KEYS task   hash: status, version, order, priority, crashes, queue, parent, isolate, waits_for,
--   parent_order, attempts, due, flow_key, waits_box, pause_token, write, retries, parent_retry,
--   updated_at, job
-- KEYS lease  hash: owner, epoch, expires, length
-- Returns
--   {'OK', epoch, left_ms, values}  left_ms is 0 if nobody holds it; the values of the task's fields, nil
--                    for one that is not there; of job only whether it is there: for a task that workers run
--   {'MISSING'}      no such task
-- @include lease_left
-- @include now_ms
-- @each

local values = redis.call('HMGET', task, 'status', 'version', 'order', 'priority', 'crashes', 'queue',
  'parent', 'isolate', 'waits_for', 'parent_order', 'attempts', 'due', 'flow_key', 'waits_box',
  'pause_token', 'write', 'retries', 'parent_retry', 'updated_at')
if not values[1] then return { 'MISSING' } end
values[#values + 1] = redis.call('HEXISTS', task, 'job') == 1 and ''
return { 'OK', tonumber(redis.call('HGET', lease, 'epoch')) or 0, lease_left(lease, now_ms()), values }
