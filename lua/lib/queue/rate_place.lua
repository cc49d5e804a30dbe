-- Return in how many ms the next place of a rate comes. Return also the rates of the name once that is taken, this one
-- first. The places that are taken already come first. `alone` if nobody goes by another rate any more.
-- @include rate_fill
local function rate_place(found, was, rate, cost, now, alone)
  local n, period_ms = string.match(rate, '^(%d+) (%d+)$')
  -- By another rate than before it is no more than empty.
  local own, others = { rate = rate, at = now, full_at = math.min(was, now + period_ms) }, {}
  for _, each in ipairs(found) do
    if each.rate == rate then
      own.full_at = each.full_at
    elseif not alone and rate_fill(each, cost, now) then
      others[#others + 1] = each
    end
  end
  own.full_at = math.max(now, own.full_at) + period_ms / n * cost
  table.sort(others, function(one, other) return one.at > other.at end)
  -- Who computes rates may give any number of them.
  return math.max(0, math.ceil(own.full_at - now - period_ms)), { own, unpack(others, 1, math.min(#others, 8)) }
end
