-- End a claimed occurrence: it will not be given out again, and the job moves on to its next one,
-- unless it was planned again meanwhile. Returns when it is due next.
-- @include job_next
-- @include job_plan
local function job_end(keys, member, ttl_ms, now)
  local was = redis.call('HMGET', keys.job, 'occurrence', 'next', 'interval', 'asked', 'owner')
  local next_us = was[2]
  if next_us == was[1] then
    next_us = job_next(was[1], was[3], math.max(tonumber(was[4]), now * 1000))
  end
  redis.call('HSET', keys.job, 'fired', was[1], 'ended', was[5])
  redis.call('HDEL', keys.job, 'owner', 'until', 'length', 'occurrence', 'asked', 'begun', 'attempts')
  job_plan(keys, member, next_us, ttl_ms)
  return next_us
end
