-- List something for as long as it lives, before it is written. Takes up to ten entries that have expired
-- out of the listing. A repetition lists it again.
-- KEYS index     zset: entries of this shard, by name
-- KEYS expiries  zset: entry -> when it is listed no more, in ms
-- ARGV entry     its name
-- ARGV ttl_ms    int: milliseconds
-- Returns
--   {'OK'}
-- @include now_ms

local swept, now = 10, now_ms()
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', expiries, '-inf', '(' .. now, 'LIMIT', 0, swept)) do
  redis.call('ZREM', index, dead)
  redis.call('ZREM', expiries, dead)
end
-- Listed twice in a millisecond, it has two stamps all the same.
local stamp = math.max(now + ttl_ms, tonumber(redis.call('ZSCORE', expiries, entry) or 0) + 1)
redis.call('ZADD', index, 0, entry)
redis.call('ZADD', expiries, string.format('%.0f', stamp), entry)
for _, key in ipairs({ index, expiries }) do
  if redis.call('PTTL', key) < ttl_ms then redis.call('PEXPIRE', key, ttl_ms) end
end
return { 'OK' }
