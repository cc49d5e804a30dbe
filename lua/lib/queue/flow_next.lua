-- Choose the next job that has a key: of the keys that may run one more, the one that had its turn the
-- longest ago. A key at its limit has no turn until one of its jobs ends, one beyond its rate until it may
-- start again. Returns the member and its key.
-- @include flow_key
-- @include flow_rate
local function flow_next(keys, now)
  while true do
    local key = redis.call('ZRANGE', keys.turns, 0, 0)[1]
    if not key then return nil end
    local first, wait_ms, full_at = flow_first(keys.keyed, key), 0, nil
    local set = redis.call('HMGET', keys.flow, 'limit:' .. key, 'per_key', 'rate:' .. key, 'key_rate')
    -- A session whose tasks run in turn has one, whatever is set.
    local limit = string.sub(key, 1, 2) == '1:' and '1' or set[1] or set[2]
    local rate = set[3] or set[4]
    local held = limit and redis.call('ZLEXCOUNT', keys.holders, '[' .. key .. '\0', '(' .. key .. '\1') or 0
    local may = first and held < tonumber(limit or 1)
    if may and rate then wait_ms, full_at = flow_wait(keys.rates, key, rate, 1, now) end
    if may and wait_ms == 0 then
      if full_at then flow_take(keys.rates, key, full_at, now) end
      return first, key
    end
    redis.call('ZREM', keys.turns, key)
    if wait_ms > 0 then flow_later(keys.waits, key, now + wait_ms) end
  end
end
