-- Take a lease if nobody holds it, under an epoch greater than every one before.
-- KEYS[1] lease    hash: owner, claim, epoch, expires, length
-- ARGV[1] owner    id of this claim; the same claim repeated gets the same epoch
-- ARGV[2] duration_ms  until it expires unless renewed
-- ARGV[3] keep_ms  how long the epoch is remembered afterwards
-- Returns
--   {'OK', epoch}           it is held
--   {'HELD', left_ms}       somebody else holds it, for so long at least
-- @include now_ms
-- @include lease_take
local lease = KEYS[1]
local owner, duration_ms, keep_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local epoch, left_ms = lease_take(lease, owner, duration_ms, keep_ms, now_ms())
if not epoch then return { 'HELD', left_ms } end
return { 'OK', epoch }
