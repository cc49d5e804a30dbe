-- Keep the time at which a watch list was last written. If the clock was set back since, all entries are
-- due soon, in their order: only an inspection shows which leases and deadlines hold by the new time. Not
-- at once: the writer of an entry has still to write the thing itself. What was found ended must be found
-- so again.
-- @include watch_band
local function watch_clock(watch, clock, now)
  local last, soon = tonumber(redis.call('GET', clock) or now), 1000
  for first = 0, last > now and redis.call('ZCARD', watch) - 1 or -1, 1000 do
    local moved, slice = {}, redis.call('ZRANGE', watch, first, first + 999, 'WITHSCORES')
    for i = 1, #slice, 2 do
      local when, from = tonumber(slice[i + 1]), 0
      if when >= watch_band(2) then
        when = last + soon
      elseif when >= watch_band(1) then
        from = watch_band(1)
      end
      local left = when - from - last
      if left > soon then left = soon + left / 1000 end
      moved[i], moved[i + 1] = string.format('%.0f', from + now + left), slice[i]
    end
    redis.call('ZADD', watch, unpack(moved))
  end
  -- A day is longer than anything waits.
  redis.call('SET', clock, string.format('%.0f', now), 'PX', 86400000)
end
