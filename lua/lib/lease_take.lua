-- Take a lease that is free or expired, under the next epoch. The same claim repeated gets the
-- same epoch. Returns the epoch, or nil and the milliseconds that the owner has left.
-- @include lease_left
local function lease_take(lease, owner, duration_ms, keep_ms, now)
  lease_left(lease, now)
  local was = redis.call('HMGET', lease, 'owner', 'epoch', 'expires')
  local held = was[1] and was[1] ~= '' and tonumber(was[3]) > now
  if held and was[1] ~= owner then return nil, tonumber(was[3]) - now end
  local epoch = tonumber(was[2] or 0)
  if was[1] ~= owner then epoch = epoch + 1 end
  redis.call('HSET', lease, 'owner', owner, 'epoch', epoch, 'expires', string.format('%.0f', now + duration_ms))
  redis.call('HSET', lease, 'length', duration_ms)
  redis.call('PEXPIRE', lease, string.format('%.0f', duration_ms + keep_ms))
  return epoch
end
