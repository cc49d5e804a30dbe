-- Let a task and its events live `ttl_ms` from now, listed as active or, with the moment of its end, as
-- completed; and take tasks whose time is over out of the lists, a bounded slice of the completed.
local function keep_state(keys, member, now, ttl_ms, completed)
  local expires, before = string.format('%.0f', now + ttl_ms), string.format('(%.0f', now)
  for _, key in ipairs({ keys.task, keys.rows, keys.ids }) do redis.call('PEXPIREAT', key, expires) end
  if completed then
    redis.call('ZREM', keys.active, member)
    redis.call('ZADD', keys.completed, completed, member)
  end
  redis.call('ZADD', completed and keys.kept or keys.active, expires, member)
  redis.call('ZREMRANGEBYSCORE', keys.active, '-inf', before)
  local over = redis.call('ZRANGEBYSCORE', keys.kept, '-inf', before, 'LIMIT', 0, 100)
  for _, list in ipairs({ keys.active, keys.completed, keys.kept }) do
    if #over > 0 and list ~= keys.active then redis.call('ZREM', list, unpack(over)) end
    if redis.call('PTTL', list) < ttl_ms then redis.call('PEXPIRE', list, ttl_ms) end
  end
end
