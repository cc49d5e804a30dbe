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
-- @include task_looked
-- @include now_ms
-- @each

local looked = task_looked(task, lease, now_ms())
if not looked then return { 'MISSING' } end
return { 'OK', unpack(looked) }
