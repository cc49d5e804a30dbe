-- Make an A2A task the one that was updated last, even if the server's clock went back, and let all
-- of it live `ttl_ms` from now. `keys` has task, tasks, history, artifacts and push.
-- @include now_us
local function a2a_touch(keys, member, ttl_ms)
  local now = now_us()
  local last = tonumber(redis.call('ZRANGE', keys.tasks, -1, -1, 'WITHSCORES')[2] or 0)
  local updated = string.format('%.0f', math.max(now, last + 1))
  redis.call('HSET', keys.task, 'updated', updated)
  redis.call('ZADD', keys.tasks, updated, member)
  redis.call('ZREMRANGEBYSCORE', keys.tasks, '-inf', string.format('(%.0f', now - ttl_ms * 1000))
  for _, key in pairs(keys) do redis.call('PEXPIRE', key, ttl_ms) end
end
