-- Keep an OAuth token until it expires. One that has expired by now only takes the old one away.
-- Once per call: a token that was refreshed or deleted before a repetition stays so.
-- KEYS token       string: the token, sealed or not
-- ARGV value       what to keep
-- ARGV expires_ms  int: on the server's clock, '' if it does not expire
-- ARGV ttl_ms      int: how long one is kept that does not expire
-- Returns
--   {'OK', kept}  0 if it had expired
-- @include now_ms
-- @once
-- @idempotent
-- @lasting

local now = now_ms()
expires_ms = expires_ms or now + ttl_ms
if expires_ms <= now then
  redis.call('DEL', token)
  return keep_reply({ 'OK', 0 })
end
redis.call('SET', token, value, 'PXAT', string.format('%.0f', expires_ms))
return keep_reply({ 'OK', 1 })
