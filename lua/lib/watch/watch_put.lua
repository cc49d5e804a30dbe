-- Put an entry on a watch list and return when it is due. Of two times the later stands, or the one
-- `given`, or the one that was there `first`, or the one that is `sooner`. That of an entry whose thing was
-- found ended stands against none. With `listed` only an entry that is on the list gets the time. An entry that
-- was only checked from time to time may need a repair from now on.
-- @include watch_band
-- @include watch_clock
-- @include watch_live
local function watch_put(watch, clock, entry, when, stands, now)
  watch_clock(watch, clock, now)
  local was = tonumber(redis.call('ZSCORE', watch, entry) or 0)
  if stands == 'listed' and was == 0 then return -1 end
  if was >= watch_band(2) then was = 0 end
  local checked = was >= watch_band(1)
  if checked then was = was - watch_band(1) end
  if stands == 'first' and was > 0 then return was end
  if stands == 'later' and was > when or stands == 'sooner' and was > 0 and was < when then
    -- It may be claimed. As with the other words the claim ends: its owner may not have seen what the caller has.
    local claimed = stands == 'sooner' and was % 1 == 0.5
    if not claimed and not checked then return was end
    when = math.floor(was)
  end
  redis.call('ZADD', watch, string.format('%.0f', when), entry)
  watch_live(watch)
  return when
end
