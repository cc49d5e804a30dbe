-- Return for how many ms a lease is held still, 0 for a free one. One that claims more than its length
-- was taken before the clock was set back: from now on it is held for its length.
local function lease_left(lease, now)
  local was = redis.call('HMGET', lease, 'owner', 'expires', 'length')
  if not was[1] or was[1] == '' then return 0 end
  local left_ms, length_ms = tonumber(was[2] or 0) - now, tonumber(was[3])
  if length_ms and left_ms > length_ms then
    left_ms = length_ms
    -- A full server refuses what may add. After any removal it lets this pass too.
    redis.call('HDEL', lease, '')
    redis.call('HSET', lease, 'expires', string.format('%.0f', now + length_ms))
  end
  return math.max(left_ms, 0)
end
