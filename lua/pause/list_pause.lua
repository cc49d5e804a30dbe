-- List an open pause among those of all sessions: until when it is open, and when it was opened. What has
-- expired goes, some at a time. A repetition changes nothing.
-- KEYS expiries  zset: key of a token -> expiry in us
-- KEYS openings  zset: key of a token -> opening in ms
-- ARGV member    key of its token
-- ARGV opened    int: ms
-- ARGV ttl_ms    int: until it expires
-- Returns
--   {'OK'}
-- @include now_us

local now = now_us()
local past = redis.call('ZRANGEBYSCORE', expiries, '-inf', string.format('(%.0f', now), 'LIMIT', 0, 500)
if past[1] then
  redis.call('ZREM', expiries, unpack(past))
  redis.call('ZREM', openings, unpack(past))
end
redis.call('ZADD', expiries, 'GT', string.format('%.0f', now + ttl_ms * 1000), member)
redis.call('ZADD', openings, string.format('%.0f', opened), member)
local last = tonumber(redis.call('ZRANGE', expiries, -1, -1, 'WITHSCORES')[2])
for _, index in ipairs({ expiries, openings }) do
  redis.call('PEXPIREAT', index, string.format('%.0f', math.ceil(last / 1000)))
end
return { 'OK' }
