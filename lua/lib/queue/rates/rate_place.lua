-- Return in how many ms the next place of a rate comes. Return also the rates of the name once that is taken, this one
-- first; and when all of it is there again by each of its rates, also by those that are kept no more. The places that
-- are taken already come first. `alone` if nobody goes by another rate any more. If too many rates have places that come
-- yet, return only in how many ms to ask again.
-- @include rates_others
local function rate_place(found, was, rate, cost, now, alone)
  local n, period_ms = string.match(rate, '^(%d+) (%d+)$')
  -- By another rate than before it is no more than empty. So is one that was kept no more: it had no places to come.
  local own, others, last = { rate = rate, at = now, full_at = math.min(was, now + period_ms) }, {}, 0
  for _, each in ipairs(found) do
    if each.rate == rate then own.full_at = each.full_at end
  end
  own.full_at = math.max(now, own.full_at) + period_ms / n * cost
  if not alone then
    others, last = rates_others(found, rate, cost, now)
    if not others then return last end
    last = math.max(last, was)
  end
  return math.max(0, math.ceil(own.full_at - now - period_ms)), { own, unpack(others) }, math.max(last, own.full_at)
end
