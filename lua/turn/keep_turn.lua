-- Ensure that a task is listed among those of its session that run in turn, as long as it is not terminal.
-- A repetition finds what was done.
-- KEYS task      hash: finished, status, attempts, flow_key, order, interrupts
-- KEYS turn      zset: task_id -> its place in the line, in ms
-- ARGV task_id   the task's id
-- ARGV place_ms  int: its place, if it is not listed
-- ARGV life_ms   int: how long the list is kept at least
-- Returns
--   {'OK', order, interrupted}  the task's, '' without one; the tasks that it has still to interrupt, each with
--                  its order
-- @include turn_list

local was = redis.call('HMGET', task, 'order', 'interrupts')
if not turn_busy(task) then
  redis.call('ZREM', turn, task_id)
elseif redis.call('ZSCORE', turn, task_id) then
  lives(turn, life_ms)
else
  turn_put(turn, task_id, place_ms, life_ms)
end
return { 'OK', was[1] or '', was[2] and cmsgpack.unpack(was[2]) or {} }
