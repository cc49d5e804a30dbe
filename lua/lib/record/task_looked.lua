-- Read what decides about a task, and how long its owner's lease still is: see look_task for what is returned of it.
-- nil if there is no such task.
-- @include lease_left
local function task_looked(task, lease, now)
  local values = redis.call('HMGET', task, 'status', 'version', 'order', 'priority', 'crashes', 'queue',
    'parent', 'isolate', 'waits_for', 'parent_order', 'attempts', 'due', 'flow_key', 'waits_box',
    'pause_token', 'write', 'retries', 'parent_retry', 'updated_at')
  if not values[1] then return nil end
  values[#values + 1] = redis.call('HEXISTS', task, 'job') == 1 and ''
  local ahead = tonumber(values[3] or 0) / 1000 - now
  -- The clock was set back since the task was written. A delay is no longer than its length; a given moment stays.
  if ahead > 0 and values[12] and redis.call('HEXISTS', task, 'due_at') == 0 then
    values[12] = string.format('%.0f', values[12] - ahead)
  end
  return { tonumber(redis.call('HGET', lease, 'epoch')) or 0, lease_left(lease, now), values }
end
