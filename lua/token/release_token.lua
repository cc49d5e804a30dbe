-- Open a token again whose claim nobody knows: its caller left before the reply.
-- A repetition finds the claim void and does nothing.
-- KEYS token    hash: state, expires, claim, actor, at, decision, void
-- ARGV claim    id of that consumer's call; it gets the token no more, however late it comes
-- ARGV keep_ms  int: how long the token's trace is kept after it expires
-- Returns
--   {'OK', released}  0: this claim does not have it
--   {'MISSING'}       no such token, or its trace is gone
-- @include now_ms

local was = redis.call('HMGET', token, 'state', 'claim', 'expires', 'void')
if not was[1] then return { 'MISSING' } end
-- The last few: those who left with them may have sent a claim that is still on its way.
redis.call('HSET', token, 'void', string.sub((was[4] or '') .. ' ' .. claim, -200))
if was[1] ~= 'resolved' or was[2] ~= claim then return { 'OK', 0 } end
redis.call('HSET', token, 'state', 'open')
redis.call('HDEL', token, 'claim', 'actor', 'at', 'decision')
redis.call('PEXPIRE', token, string.format('%.0f', math.max(0, tonumber(was[3]) - now_ms()) + keep_ms))
return { 'OK', 1 }
