-- Note that a job was kept for workers with its version, or claimed by one; return the mark. It is another one
-- each time, also when the clock goes back: who has seen the last one looks again.
local function parked_place(flow, now)
  local last = tonumber(redis.call('HGET', flow, 'parked') or 0)
  local mark = string.format('%.0f', math.max(now, last + 1))
  redis.call('HSET', flow, 'parked', mark)
  redis.call('PEXPIRE', flow, 34560000000)
  return mark
end
