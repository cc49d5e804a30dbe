-- Note in an index that there is something of a member, for as long as it may be there.
-- Only what has expired goes: a repetition changes nothing.
-- KEYS index   zset: member -> expiry in us
-- ARGV member  text
-- ARGV ttl_ms  int: milliseconds, 0 for ever
-- Returns
--   {'OK', added}  1 if the member is new
-- @include now_us

local now = now_us()
redis.call('ZREMRANGEBYSCORE', index, '-inf', string.format('(%.0f', now))
local score = ttl_ms > 0 and string.format('%.0f', now + ttl_ms * 1000) or '+inf'
local added = redis.call('ZADD', index, 'GT', score, member)
local last = redis.call('ZRANGE', index, -1, -1, 'WITHSCORES')[2]
if last == 'inf' then
  redis.call('PERSIST', index)
else
  redis.call('PEXPIREAT', index, string.format('%.0f', math.ceil(tonumber(last) / 1000)))
end
return { 'OK', added }
