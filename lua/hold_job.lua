-- Hold a claimed job for longer, or give it back; note when its run begins.
-- KEYS[1] job      hash: owner, until, length, begun, attempts
-- ARGV[1] owner    id of the claim
-- ARGV[2] lease_ms from now; 0 gives it back
-- ARGV[3] begins   1 when its run begins, else 0
-- Returns
--   {'OK', attempts}  how often this occurrence was begun
--   {'LOST'}          another claim has it, or it was ended
-- @include now_ms
local job = KEYS[1]
local owner, lease_ms, begins = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local was = redis.call('HMGET', job, 'owner', 'begun')
if was[1] ~= owner then return { 'LOST' } end
if begins == '1' and was[2] ~= owner then
  redis.call('HSET', job, 'begun', owner)
  redis.call('HINCRBY', job, 'attempts', 1)
end
redis.call('HSET', job, 'until', string.format('%.0f', now_ms() + lease_ms), 'length', lease_ms)
return { 'OK', tonumber(redis.call('HGET', job, 'attempts')) }
