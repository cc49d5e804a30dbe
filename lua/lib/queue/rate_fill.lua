-- Fill a rate by what is taken by another; return whether it is still of use: some wait for its places, or it was
-- taken within its period.
local function rate_fill(other, cost, now)
  local n, period_ms = string.match(other.rate, '^(%d+) (%d+)$')
  local empty_at = now + period_ms
  if other.full_at > empty_at then return true end
  other.full_at = math.min(empty_at, math.max(now, other.full_at) + period_ms / n * cost)
  return now - other.at <= tonumber(period_ms)
end
