-- Write fields into a record, one version up, with its life and its place in an index. `write`
-- names the writer's call, so that a repeated call recognises its own work.
local function record_write(record, index, write, ttl_ms, fields)
  local was = redis.call('HMGET', record, 'write', 'version', 'order')
  local version = tonumber(was[2] or 0)
  if was[1] == write then return version end
  local time = redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  version = version + 1
  redis.call('HSET', record, 'write', write, 'version', string.format('%.0f', version),
    'order', was[3] or string.format('%.0f', now_us), unpack(fields))
  redis.call('PEXPIRE', record, ttl_ms)
  if index.key ~= '' then
    redis.call('ZADD', index.key, string.format('%.0f', now_us + ttl_ms * 1000), index.member)
    redis.call('ZREMRANGEBYSCORE', index.key, '-inf', string.format('(%.0f', now_us))
    -- GT takes a key without a lifetime, as a new one is, for one that lives longest.
    local longer = redis.call('PEXPIRE', index.key, ttl_ms, 'GT')
    if longer == 0 and redis.call('PTTL', index.key) < 0 then redis.call('PEXPIRE', index.key, ttl_ms) end
  end
  return version
end
