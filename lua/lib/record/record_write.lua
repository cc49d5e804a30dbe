-- Write fields into a record, one version up, with its life and its place in an index; both stay as
-- they are without a `ttl_ms`. A score of 0 or less is not of a record. `write` names the writer's call, so that a repeated call recognises
-- its own work. `was` is the record's write, version and order, for who has read them.
-- @include now_us
local function record_write(record, index, write, ttl_ms, fields, was)
  was = was or redis.call('HMGET', record, 'write', 'version', 'order')
  local version = tonumber(was[2] or 0)
  if was[1] == write then return version end
  local now = now_us()
  version = version + 1
  local order = was[3] or string.format('%.0f', now)
  redis.call('HSET', record, 'order', order, 'write', write, 'version', string.format('%.0f', version), unpack(fields))
  if not ttl_ms then return version end
  redis.call('PEXPIRE', record, ttl_ms)
  if index.key ~= '' then
    redis.call('ZADD', index.key, string.format('%.0f', now + ttl_ms * 1000), index.member)
    redis.call('ZREMRANGEBYSCORE', index.key, '(0', string.format('(%.0f', now))
    -- GT takes a key without a lifetime, as a new one is, for one that lives longest. What is shorter may
    -- have been the longest: then the index lives as long as the last of the others.
    if redis.call('PEXPIRE', index.key, ttl_ms, 'GT') == 0 then
      local last = redis.call('ZRANGE', index.key, -1, -1, 'WITHSCORES')[2]
      redis.call('PEXPIRE', index.key, string.format('%.0f', math.max(ttl_ms, (last - now) / 1000)))
    end
  end
  return version
end
