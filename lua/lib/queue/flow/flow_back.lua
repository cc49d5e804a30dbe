-- Give back what a claim took of its key's rate: its job has not begun. That is a place of the rate of that time,
-- but no more than one of today's if today's has another period. Without one today it is there for the next.
-- @include key_lines
local function flow_back(keys, key, rate)
  local line, above = key_lines(key)
  key = above or line
  local set = redis.call('HMGET', keys.flow, 'rate:' .. key, 'key_rate')
  local n, period_ms = string.match(set[1] or set[2] or rate or '', '^(%d+) (%d+)$')
  local taken = n and redis.call('ZSCORE', keys.rates, key)
  if not taken then return end
  local back_ms = period_ms / n
  -- An earlier version of the library does not record it.
  local was, then_ms = string.match(rate or '', '^(%d+) (%d+)$')
  if was then back_ms = then_ms == period_ms and then_ms / was or math.min(back_ms, then_ms / was) end
  redis.call('ZADD', keys.rates, string.format('%.3f', taken - back_ms), key)
end
