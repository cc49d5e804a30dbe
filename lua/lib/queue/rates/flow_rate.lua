-- How long a name must wait for `cost` of what a rate, `<n> <period ms>`, allows; 0 if it is there now.
-- `rates` has for each name the time at which all of it will be there again: who may take now, moves that on.
-- A name whose time has passed is forgotten. Cost is at most n.
local function flow_wait(rates, name, rate, cost, now)
  local n, period_ms = string.match(rate, '^(%d+) (%d+)$')
  local was = tonumber(redis.call('ZSCORE', rates, name) or 0)
  if was > now + period_ms then
    -- The clock was set back, or the period was longer. It is written, so that it passes from now on.
    was = now + period_ms
    redis.call('ZADD', rates, string.format('%.3f', was), name)
  end
  local full_at = math.max(now, was) + period_ms / n * cost
  return math.max(0, math.ceil(full_at - now - period_ms)), full_at
end

local function flow_take(rates, name, full_at, now)
  redis.call('ZADD', rates, string.format('%.3f', full_at), name)
  redis.call('ZREMRANGEBYSCORE', rates, '-inf', string.format('(%.0f', now))
  -- Longer than any period.
  redis.call('PEXPIRE', rates, 691200000)
end

local function flow_later(waits, name, at_ms)
  redis.call('ZADD', waits, string.format('%.0f', at_ms), name)
  redis.call('PEXPIRE', waits, 691200000)
end
