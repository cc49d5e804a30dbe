-- Give a lease back; its epoch stays, so that the next owner's is greater. A repetition
-- finds the lease free, or a later owner's, and leaves it so.
-- KEYS lease  hash: owner, claim, epoch, expires
-- ARGV owner  of the claim that took it
-- ARGV epoch  that it was taken under
-- Returns
--   {'OK', epoch}    it is free
--   {'LOST', epoch}  it was not held under this epoch any more
-- @lasting

local was = redis.call('HMGET', lease, 'claim', 'epoch')
if was[2] ~= epoch or was[1] ~= owner then return { 'LOST', tonumber(was[2] or 0) } end
-- A full server refuses what may add. After any removal it lets this pass too.
redis.call('HDEL', lease, '')
redis.call('HSET', lease, 'owner', '', 'expires', 0)
return { 'OK', tonumber(epoch) }
