-- Return for how long an open pause may still be decided. One that claims more than its length was opened before the
-- clock was set back: from now on it is open for its length. A repetition finds it so.
-- KEYS token  hash: state, opened, expires
-- KEYS tasks  zset: \255 and a token's digest -> minus its expiry in ms
-- Returns
--   {'OK', left_ms}  0 if nobody decided it in time, or if it is gone; of one that is decided, until its deadline
-- @include now_ms
-- @include pause_member

local now, was = now_ms(), redis.call('HMGET', token, 'state', 'opened', 'expires')
-- A token without its end is damaged, which the subtraction refuses.
local left_ms = (was[1] and was[3] or not was[1] and 0) - now
local length_ms = was[1] == 'open' and was[2] and was[3] - was[2]
if length_ms and left_ms > length_ms then
  local life_ms = redis.call('PTTL', token) - left_ms + length_ms
  left_ms = length_ms
  local expires = string.format('%.0f', now + length_ms)
  -- First: behind it a full server lets the rest pass.
  redis.call('PEXPIRE', token, math.max(life_ms, length_ms))
  redis.call('HSET', token, 'opened', string.format('%.0f', now), 'expires', expires)
  redis.call('ZADD', tasks, 'XX', '-' .. expires, pause_member(token))
end
return { 'OK', math.max(left_ms, 0) }
