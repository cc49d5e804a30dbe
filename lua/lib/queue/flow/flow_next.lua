-- Choose the next job that has a key: of the lines and limit keys that may run one more, the one that had its turn the
-- longest ago. One at its limit has no turn until one of its jobs ends, one beyond its rate until it may
-- start again. Returns the member, its key, and the rate that it takes of. Nothing if there is none, or if so much was
-- dropped that the next call is to choose: the name keeps its turn.
-- @include line_next
-- @include flow_may
local function flow_next(keys, now)
  while true do
    local name = redis.call('ZRANGE', keys.turns, 0, 0)[1]
    if not name then return nil end
    local wait_ms, full_at, rate = nil, nil, nil
    local first, key = line_next(keys, name, now)
    if first == 'more' then return nil end
    if first then wait_ms, full_at, rate = flow_may(keys, name, now) end
    if wait_ms == 0 then
      if full_at then flow_take(keys.rates, name, full_at, now) end
      return first, key, rate
    end
    redis.call('ZREM', keys.turns, name)
    if wait_ms then flow_later(keys.waits, name, now + wait_ms) end
  end
end
