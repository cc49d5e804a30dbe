-- Keep an OAuth token until it expires. One that has expired by now only takes the old one away.
-- KEYS[1] token    string: the token, sealed or not
-- ARGV[1] value    what to keep
-- ARGV[2] expires_ms  on the server's clock, '' if it does not expire
-- ARGV[3] ttl_ms   how long one is kept that does not expire
-- Returns
--   {'OK', kept}  0 if it had expired
-- @include now_ms
local token = KEYS[1]
local value, expires_ms, ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local now = now_ms()
expires_ms = expires_ms or now + ttl_ms
if expires_ms <= now then
  redis.call('DEL', token)
  return { 'OK', 0 }
end
redis.call('SET', token, value, 'PXAT', string.format('%.0f', expires_ms))
return { 'OK', 1 }
