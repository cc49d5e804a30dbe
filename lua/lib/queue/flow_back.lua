-- Give back what a claim took of its key's rate: its job has not begun.
-- @include key_lines
local function flow_back(keys, key)
  local line, above = key_lines(key)
  key = above or line
  local set = redis.call('HMGET', keys.flow, 'rate:' .. key, 'key_rate')
  local n, period_ms = string.match(set[1] or set[2] or '', '^(%d+) (%d+)$')
  local taken = n and redis.call('ZSCORE', keys.rates, key)
  if taken then redis.call('ZADD', keys.rates, string.format('%.3f', taken - period_ms / n), key) end
end
