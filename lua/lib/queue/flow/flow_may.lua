-- For how many ms a key may not start another job, 0 if it may now; nil while as many run as may, of the line or of
-- the limit key that it stands in. With a rate also when all of it will be there again, once a job has started, and
-- the rate.
-- @include key_lines
-- @include line_full
-- @include flow_rate
local function flow_may(keys, key, now)
  local line, above = key_lines(key)
  local name = above or line
  if above and line_full(keys, line, 1, now) then return nil end
  local set = redis.call('HMGET', keys.flow, 'limit:' .. name, 'per_key', 'rate:' .. name, 'key_rate')
  -- A session whose tasks run in turn has one, as have a schedule's backfills, whatever is set. For the latter
  -- no rate of keys holds either.
  local limit = string.find(name, '^[1b]:') and '1' or set[1] or set[2]
  local rate = string.sub(name, 1, 2) ~= 'b:' and (set[3] or set[4])
  if limit and line_full(keys, name, tonumber(limit), now) then return nil end
  if not rate then return 0 end
  local wait_ms, full_at = flow_wait(keys.rates, name, rate, 1, now)
  return wait_ms, full_at, rate
end
