-- Return what an item was. It stands beside the task that has the item: an earlier release reads that field alone.
local function gather_sent(gathering, name, item_id)
  return redis.call('HGET', gathering, '=' .. name .. ':' .. item_id) or ''
end

-- Remember in which task an item is, what it was, and which task's input is open; forget some of what was
-- remembered long enough.
-- @include lives
local function gather_item(gathering, items, name, item_id, sent, task_id, now, keep_ms)
  for _, old in ipairs(redis.call('ZRANGE', items, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 4)) do
    redis.call('HDEL', gathering, old, '=' .. old)
    redis.call('ZREM', items, old)
  end
  local until_ms, item = string.format('%.0f', now + keep_ms), name .. ':' .. item_id
  local fields, members = { name, task_id }, { until_ms, name }
  if item_id ~= '' then
    fields, members = { name, task_id, item, task_id }, { until_ms, name, until_ms, item }
    if sent ~= '' then fields[5], fields[6] = '=' .. item, sent end
  end
  redis.call('HSET', gathering, unpack(fields))
  redis.call('ZADD', items, unpack(members))
  lives(gathering, keep_ms)
  lives(items, keep_ms)
end
