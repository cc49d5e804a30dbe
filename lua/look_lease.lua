-- Tell for how long a lease is held still.
-- KEYS[1] lease    hash: owner, expires, length
-- Returns
--   {'OK', left_ms}  0 if nobody holds it
-- @include lease_left
-- @include now_ms
local lease = KEYS[1]

return { 'OK', lease_left(lease, now_ms()) }
