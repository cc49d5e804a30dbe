-- Callers may give a name several rates: new code gives another one while old code still runs, say. Each rate has
-- places of its own. What is taken by one fills the others too, up to a period of theirs. So its callers never take more
-- than it allows, and do not wait for the places of another.
-- Beside the name, with its score, stands each rate: <name>\0<rate>\0<at> says when it was taken last, in ms. If there
-- are several, <name>\0<rate>\0<full at>:<at> says of each when all of it is there again. The last of these times is
-- the score, also if its rate is kept no more.

-- Read the rates by which a name was taken lately. Return also when all of it is there again by each of them.
local function rates_read(rates, name, now)
  local was, found, ahead = redis.call('ZSCORE', rates, name), {}, 0
  for _, member in ipairs(was and redis.call('ZRANGEBYSCORE', rates, was, was) or {}) do
    local rate, full_at, at = string.match(member, '%z([^%z]+)%z(.-):?(%d+)$')
    if rate and string.sub(member, 1, #name + 1) == name .. '\0' then
      -- The clock was set back: the places go with it.
      local back = math.max(0, at - now)
      ahead = math.max(ahead, back)
      found[#found + 1] = { member = member, rate = rate, full_at = (tonumber(full_at) or was) - back, at = at - back }
    end
  end
  return found, tonumber(was or 0) - ahead
end
