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
  local until_ms = string.format('%.0f', now + keep_ms)
  for _, each in ipairs({ name, item_id ~= '' and name .. ':' .. item_id or nil }) do
    redis.call('HSET', gathering, each, task_id)
    redis.call('ZADD', items, until_ms, each)
  end
  if sent ~= '' then redis.call('HSET', gathering, '=' .. name .. ':' .. item_id, sent) end
  lives(gathering, keep_ms)
  lives(items, keep_ms)
end
