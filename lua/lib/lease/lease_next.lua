-- Return the epoch under which a claim may take a lease, or nil and the milliseconds that its owner has
-- left. Nothing is written. `known` is an epoch of the lease that is remembered elsewhere, as its hash may
-- be gone. What else must not be refused stands between this and `lease_write`.
-- @include lease_left
local function lease_next(lease, owner, now, known)
  lease_left(lease, now)
  local was = redis.call('HMGET', lease, 'owner', 'epoch', 'expires')
  local held = was[1] and was[1] ~= '' and tonumber(was[3]) > now
  if held and was[1] ~= owner then return nil, tonumber(was[3]) - now end
  local epoch = tonumber(was[2] or known or 0)
  return was[1] == owner and epoch or math.max(epoch + 1, now)
end

-- Take it under that epoch.
local function lease_write(lease, owner, epoch, duration_ms, keep_ms, now)
  redis.call('HSET', lease, 'owner', owner, 'claim', owner, 'epoch', string.format('%.0f', epoch),
    'expires', string.format('%.0f', now + duration_ms), 'length', duration_ms)
  if keep_ms ~= '' then redis.call('PEXPIRE', lease, string.format('%.0f', duration_ms + keep_ms)) end
end
