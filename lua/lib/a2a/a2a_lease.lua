-- Give a lease to the server that wrote the task last and works on it: under a new epoch if it is another
-- server than before, else renewed. No owner releases it, '-' leaves it. Returns the epoch.
-- @include lease_left
local function a2a_lease(lease, owner, now, lease_ms, keep_ms)
  local was = redis.call('HMGET', lease, 'owner', 'epoch')
  local epoch = tonumber(was[2] or 0)
  if owner == '-' or owner == '' and not was[2] then return epoch end
  if owner ~= '' and was[1] ~= owner then epoch = math.max(epoch + 1, now) end
  local expires = owner == '' and 0 or now + lease_ms
  redis.call('HSET', lease, 'owner', owner, 'epoch', string.format('%.0f', epoch),
    'expires', string.format('%.0f', expires), 'length', lease_ms)
  if owner ~= '' then redis.call('HSET', lease, 'claim', owner) end
  redis.call('PEXPIRE', lease, string.format('%.0f', lease_ms + keep_ms))
  return epoch
end

-- The epoch of a lease that expired while a server held it; nil of any other.
local function a2a_dead(lease, now)
  local was = redis.call('HMGET', lease, 'owner', 'epoch')
  if not was[1] or was[1] == '' or lease_left(lease, now) > 0 then return nil end
  return was[2]
end
