-- Keep an OAuth token until it expires. One that has expired by now only takes the old one away.
-- Once per call: a token that was refreshed or deleted before a repetition stays so.
-- KEYS[1] token    string: the token, sealed or not
-- KEYS[2] call     string: this call's reply, if it was here before
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] value    what to keep
-- ARGV[3] expires_ms  on the server's clock, '' if it does not expire
-- ARGV[4] ttl_ms   how long one is kept that does not expire
-- Returns
--   {'OK', kept}  0 if it had expired
-- @include call_noted
-- @include call_note
-- @include now_ms
-- @idempotent
local token, call = KEYS[1], KEYS[2]
local keep_ms, value, expires_ms, ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local done = call_noted(call)
if done then return done end
local now = now_ms()
expires_ms = expires_ms or now + ttl_ms
if expires_ms <= now then
  redis.call('DEL', token)
  return call_note(call, keep_ms, { 'OK', 0 })
end
redis.call('SET', token, value, 'PXAT', string.format('%.0f', expires_ms))
return call_note(call, keep_ms, { 'OK', 1 })
