-- Note that the run of a claimed occurrence begins, once per claim, and hold it for longer.
-- KEYS job       hash: begun, attempts, and a lease
-- ARGV mark      of the claim's lease
-- ARGV owner     id of the claim
-- ARGV lease_ms  int: from now
-- Returns
--   {'OK', attempts}  how often this occurrence was begun
--   {'LOST', epoch}   another claim has it, or it was ended
-- @include fence
-- @include lease_take
-- @include now_ms

local lost = fence(job, mark)
if lost then return lost end
lease_take(job, owner, lease_ms, '', now_ms())
if redis.call('HGET', job, 'begun') ~= owner then
  redis.call('HSET', job, 'begun', owner)
  redis.call('HINCRBY', job, 'attempts', 1)
end
return { 'OK', tonumber(redis.call('HGET', job, 'attempts')) }
