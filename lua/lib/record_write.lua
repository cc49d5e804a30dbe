-- Write fields into a record, one version up, with its life and its place in an index. `write`
-- names the writer's call, so that a repeated call recognises its own work.
local function record_write(record, index, write, ttl_ms, fields)
  if redis.call('HGET', record, 'write') == write then
    return tonumber(redis.call('HGET', record, 'version'))
  end
  local time = redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  redis.call('HSET', record, 'write', write, unpack(fields))
  redis.call('HSETNX', record, 'order', string.format('%.0f', now_us))
  local version = redis.call('HINCRBY', record, 'version', 1)
  redis.call('PEXPIRE', record, ttl_ms)
  if index.key ~= '' then
    redis.call('ZADD', index.key, string.format('%.0f', now_us + ttl_ms * 1000), index.member)
    redis.call('ZREMRANGEBYSCORE', index.key, '-inf', string.format('(%.0f', now_us))
    if redis.call('PTTL', index.key) < ttl_ms then redis.call('PEXPIRE', index.key, ttl_ms) end
  end
  return version
end
