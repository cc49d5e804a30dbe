-- Choose the next job that has a key: of the keys that may run one more, the one that had its turn the
-- longest ago. A key at its limit has no turn until one of its jobs ends, one beyond its rate until it may
-- start again. Returns the member, its key, and whether it takes of a rate.
-- @include flow_key
-- @include flow_may
local function flow_next(keys, now)
  while true do
    local key = redis.call('ZRANGE', keys.turns, 0, 0)[1]
    if not key then return nil end
    local first, wait_ms, full_at = flow_first(keys.keyed, key), nil, nil
    if first then wait_ms, full_at = flow_may(keys, key, now) end
    if wait_ms == 0 then
      if full_at then flow_take(keys.rates, key, full_at, now) end
      return first, key, full_at
    end
    redis.call('ZREM', keys.turns, key)
    if wait_ms then flow_later(keys.waits, key, now + wait_ms) end
  end
end
