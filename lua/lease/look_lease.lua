-- Return for how long a lease is still held.
-- KEYS lease  hash: owner, expires, length
-- Returns
--   {'OK', left_ms}  0 if nobody holds it
-- @include lease_left
-- @include now_ms

return { 'OK', lease_left(lease, now_ms()) }
