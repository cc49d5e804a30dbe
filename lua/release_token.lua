-- Open a token again whose claim nobody knows: its caller left before the reply.
-- A repetition finds the claim void and does nothing.
-- KEYS[1] token    hash: state, expires, claim, by, at, decision, void
-- ARGV[1] claim    id of that consumer's call; it gets the token no more, however late it comes
-- ARGV[2] keep_ms  how long the token's trace is kept after it expires
-- Returns
--   {'OK', released}  0: this claim does not have it
--   {'MISSING'}       no such token, or its trace is gone
-- @include now_ms
local key = KEYS[1]
local claim, keep_ms = ARGV[1], tonumber(ARGV[2])

local was = redis.call('HMGET', key, 'state', 'claim', 'expires')
if not was[1] then return { 'MISSING' } end
redis.call('HSET', key, 'void', claim)
if was[1] ~= 'resolved' or was[2] ~= claim then return { 'OK', 0 } end
redis.call('HSET', key, 'state', 'open')
redis.call('HDEL', key, 'claim', 'by', 'at', 'decision')
redis.call('PEXPIRE', key, string.format('%.0f', math.max(0, tonumber(was[3]) - now_ms()) + keep_ms))
return { 'OK', 1 }
