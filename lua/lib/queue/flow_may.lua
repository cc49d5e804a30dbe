-- For how many ms a key may not start another job, 0 if it may now; nil while as many run as may. With a rate
-- also when all of it will be there again, once a job has started.
-- @include flow_rate
local function flow_may(keys, key, now)
  local set = redis.call('HMGET', keys.flow, 'limit:' .. key, 'per_key', 'rate:' .. key, 'key_rate')
  -- A session whose tasks run in turn has one, as have a schedule's backfills, whatever is set. For the latter
  -- no rate of keys holds either.
  local limit = string.find(key, '^[1b]:') and '1' or set[1] or set[2]
  local rate = string.sub(key, 1, 2) ~= 'b:' and (set[3] or set[4])
  local held = limit and redis.call('ZLEXCOUNT', keys.holders, '[' .. key .. '\0', '(' .. key .. '\1') or 0
  if limit and held >= tonumber(limit) then return nil end
  if not rate then return 0 end
  return flow_wait(keys.rates, key, rate, 1, now)
end
