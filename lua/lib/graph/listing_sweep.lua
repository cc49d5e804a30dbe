-- Take entries that have expired out of a listing; returns how many.
local function listing_sweep(index, expiries, now, most)
  local dead = redis.call('ZRANGEBYSCORE', expiries, '-inf', '(' .. string.format('%.3f', now), 'LIMIT', 0, most)
  for _, entry in ipairs(dead) do
    redis.call('ZREM', index, entry)
    redis.call('ZREM', expiries, entry)
  end
  return #dead
end
