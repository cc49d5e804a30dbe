-- Take a lease that is free or expired, under a new epoch: the server's time in ms, or more. The same
-- claim repeated gets the same epoch. `claim` stays when the owner gives the lease back. Without
-- keep_ms its hash lives as it did: it is a record's too. Returns the epoch, or nil and the milliseconds
-- that the owner has left.
-- @include lease_next
local function lease_take(lease, owner, duration_ms, keep_ms, now)
  local epoch, left_ms = lease_next(lease, owner, now)
  if epoch then lease_write(lease, owner, epoch, duration_ms, keep_ms, now) end
  return epoch, left_ms
end
