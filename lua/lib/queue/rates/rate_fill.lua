-- Fill a rate by what is taken by another, if it was taken within its period. Return whether it is still of use: it was,
-- or what was taken by it is not all there again, as of one for whose places some have waited.
local function rate_fill(other, cost, now)
  local n, period_ms = string.match(other.rate, '^(%d+) (%d+)$')
  local empty_at = now + period_ms
  if other.full_at > empty_at then return true end
  if now - other.at > tonumber(period_ms) then return other.full_at > now end
  other.full_at = math.min(empty_at, math.max(now, other.full_at) + period_ms / n * cost)
  return true
end
