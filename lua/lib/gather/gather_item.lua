-- Remember in which task an item is, and forget some of those that were remembered long enough.
-- @include lives
local function gather_item(gathering, items, name, item_id, task_id, now, keep_ms)
  for _, old in ipairs(redis.call('ZRANGE', items, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 4)) do
    redis.call('HDEL', gathering, old)
    redis.call('ZREM', items, old)
  end
  redis.call('HSET', gathering, name, task_id)
  lives(gathering, keep_ms)
  if item_id == '' then return end
  redis.call('HSET', gathering, name .. ':' .. item_id, task_id)
  redis.call('ZADD', items, string.format('%.0f', now + keep_ms), name .. ':' .. item_id)
  lives(items, keep_ms)
end
