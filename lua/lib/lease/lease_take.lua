-- Take a lease that is free or expired, under a new epoch: the server's time in ms, or more. The same
-- claim repeated gets the same epoch. `claim` stays when the owner gives the lease back. Without
-- keep_ms its hash lives as it did: it is a record's too. Returns the epoch, or nil and the milliseconds
-- that the owner has left.
-- @include lease_left
local function lease_take(lease, owner, duration_ms, keep_ms, now)
  lease_left(lease, now)
  local was = redis.call('HMGET', lease, 'owner', 'epoch', 'expires')
  local held = was[1] and was[1] ~= '' and tonumber(was[3]) > now
  if held and was[1] ~= owner then return nil, tonumber(was[3]) - now end
  local epoch = tonumber(was[2] or 0)
  if was[1] ~= owner then epoch = math.max(epoch + 1, now) end
  redis.call('HSET', lease, 'owner', owner, 'claim', owner, 'epoch', string.format('%.0f', epoch),
    'expires', string.format('%.0f', now + duration_ms), 'length', duration_ms)
  if keep_ms ~= '' then redis.call('PEXPIRE', lease, string.format('%.0f', duration_ms + keep_ms)) end
  return epoch
end
