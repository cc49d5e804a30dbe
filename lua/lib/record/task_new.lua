-- Return the version of a task that is there already, and whether this call wrote it; nil for none.
local function task_known(task, write)
  local was = redis.call('HMGET', task, 'version', 'write')
  return tonumber(was[1] or nil), was[2] == write
end

-- Write a new task down and announce it. What an earlier task of the same id recorded, received and spawned is
-- not this one's; of the first task of an id, what was said of it before it was made counts too.
-- @include announce
-- @include log_head
-- @include topic_index
-- @include record_write
local function task_new(keys, children, steering, announcement, fields, write, ttl_ms, task_id, now)
  if redis.call('EXISTS', keys.lease) + redis.call('HEXISTS', announcement.ids, topic_field(task_id)) > 0 then
    local steering_head = log_head(redis.call('HGET', steering.ids, ''))
    fields[#fields + 1] = 'inbox'
    fields[#fields + 1] = string.format('%.0f-%.0f', steering_head.last, steering_head.last_ms)
  end
  redis.call('DEL', keys.journal, children)
  announce(announcement, task_id, now)
  return record_write(keys.task, { key = keys.tasks, member = task_id }, write, ttl_ms, fields, {})
end
