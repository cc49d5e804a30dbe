-- Take a lease if nobody holds it, under an epoch greater than every one before.
-- KEYS lease        hash: owner, claim, epoch, expires, length
-- ARGV owner        id of this claim; the same claim repeated gets the same epoch
-- ARGV duration_ms  int: until it expires unless renewed
-- ARGV keep_ms      how long the epoch is remembered afterwards: ms, '' in the hash of a record
-- Returns
--   {'OK', epoch}           it is held
--   {'HELD', left_ms}       another owner holds it, for so long at least
-- @include now_ms
-- @include lease_take

local epoch, left_ms = lease_take(lease, owner, duration_ms, keep_ms, now_ms())
if not epoch then return { 'HELD', left_ms } end
return { 'OK', epoch }
