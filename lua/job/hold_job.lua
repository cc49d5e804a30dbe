-- Hold a claimed job for longer, or give it back; note when its run begins.
-- KEYS job       hash: owner, until, length, begun, attempts
-- ARGV owner     id of the claim
-- ARGV lease_ms  int: from now; 0 gives it back
-- ARGV begins    flag: its run begins
-- Returns
--   {'OK', attempts}  how often this occurrence was begun
--   {'LOST'}          another claim has it, or it was ended
-- @include now_ms

local was = redis.call('HMGET', job, 'owner', 'begun')
if was[1] ~= owner then return { 'LOST' } end
if begins and was[2] ~= owner then
  redis.call('HSET', job, 'begun', owner)
  redis.call('HINCRBY', job, 'attempts', 1)
end
redis.call('HSET', job, 'until', string.format('%.0f', now_ms() + lease_ms), 'length', lease_ms)
return { 'OK', tonumber(redis.call('HGET', job, 'attempts')) }
