-- Return a task's status, and how long its owner's lease still is.
-- KEYS task   hash: status, version, order, priority, crashes, queue, job, parent, isolate,
--   waits_for, parent_order, attempts
-- KEYS lease  hash: owner, epoch, expires, length
-- Returns
--   {'OK', status, version, epoch, left_ms, order, priority, crashes, queue, ours, parent, waits_for, parent_order, attempts}
--                    left_ms is 0 if nobody holds it; ours is 1 for a task that workers run;
--                    parent is the task with which it is cancelled; waits_for is a child;
--                    parent_order is the order of the task that spawned it, as it then was; attempts
--                    is how often it was started
--   {'MISSING'}      no such task
-- @include lease_left
-- @include now_ms

local found = redis.call('HMGET', task, 'status', 'version', 'order', 'priority', 'crashes', 'queue',
  'parent', 'isolate', 'waits_for', 'parent_order', 'attempts')
if not found[1] then return { 'MISSING' } end
local epoch, left_ms = redis.call('HGET', lease, 'epoch'), lease_left(lease, now_ms())
return { 'OK', found[1], tonumber(found[2]) or 0, tonumber(epoch) or 0, left_ms, found[3] or '0',
  found[4] or '0', tonumber(found[5]) or 0, found[6] or '', redis.call('HEXISTS', task, 'job'),
  found[8] ~= '1' and found[7] or '', found[9] or '', found[10] or '', tonumber(found[11]) or 0 }
