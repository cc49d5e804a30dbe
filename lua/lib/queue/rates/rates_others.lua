-- Fill the other rates of a name by what is taken by one. Return those that are kept: all with places that come yet, of
-- the others the last. Return also when all of it is there again by each, also by those that are kept no more. If 64
-- have places that come yet, return instead of them in how many ms the first of these has none.
-- @include rate_fill
local function rates_others(found, rate, cost, now)
  local others, waiting, again_ms, last = {}, 0, math.huge, 0
  for _, each in ipairs(found) do
    if each.rate ~= rate and rate_fill(each, cost, now) then
      others[#others + 1] = each
      each.left_ms = math.max(0, math.ceil(each.full_at - now - string.match(each.rate, '%d+$')))
      if each.left_ms > 0 then waiting, again_ms = waiting + 1, math.min(again_ms, each.left_ms) end
      last = math.max(last, each.full_at)
    end
  end
  if waiting >= 64 then return nil, again_ms end
  table.sort(others, function(one, other)
    if (one.left_ms > 0) ~= (other.left_ms > 0) then return one.left_ms > 0 end
    return one.at > other.at
  end)
  -- Who computes rates may give any number of them.
  return { unpack(others, 1, math.min(#others, math.max(8, waiting))) }, last
end
