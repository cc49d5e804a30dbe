-- Return in how many ms the next place of a rate comes, when all of it is there again if that is taken, and
-- what stands beside the name. The places that are taken already come first.
local function rate_place(rates, name, rate, cost, now)
  local n, period_ms = string.match(rate, '^(%d+) (%d+)$')
  local was, beside = redis.call('ZSCORE', rates, name) or '0', nil
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', rates, was, was)) do
    if string.sub(member, 1, #name + 1) == name .. '\0' then beside = member end
  end
  local before, at = string.match(beside or '', '%z([^%z]+)%z(%d+)$')
  local later = tonumber(was)
  if before ~= rate then
    later = math.min(later, now + period_ms)
  elseif now < tonumber(at) then
    -- The clock was set back: the places go with it.
    later = later - (at - now)
  end
  local full_at = math.max(now, later) + period_ms / n * cost
  return math.max(0, math.ceil(full_at - now - period_ms)), full_at, beside
end
