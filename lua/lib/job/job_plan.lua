-- Write when a job is due next ('' for never), and let it and its places live `ttl_ms` beyond that.
-- `keys` has job, jobs, jobs_of and due.
-- @include now_us
local function job_plan(keys, member, next_us, ttl_ms)
  local now = now_us()
  redis.call('HSET', keys.job, 'next', next_us)
  if next_us ~= '' and redis.call('HGET', keys.job, 'enabled') == '1' then
    redis.call('ZADD', keys.due, next_us, member)
  else
    redis.call('ZREM', keys.due, member)
  end
  local ends_us = math.max(now, tonumber(next_us) or 0) + ttl_ms * 1000
  local life_ms = string.format('%.0f', math.ceil((ends_us - now) / 1000))
  for _, index in ipairs({ keys.jobs, keys.jobs_of }) do
    redis.call('ZADD', index, string.format('%.0f', ends_us), member)
    redis.call('ZREMRANGEBYSCORE', index, '-inf', string.format('(%.0f', now))
  end
  redis.call('PEXPIRE', keys.job, life_ms)
  for _, key in ipairs({ keys.jobs, keys.jobs_of, keys.due }) do
    if redis.call('PTTL', key) < tonumber(life_ms) then redis.call('PEXPIRE', key, life_ms) end
  end
end
