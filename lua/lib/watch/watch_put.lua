-- Put an entry on a watch list and return when it is due. Of two times the later stands, or the one
-- `given`, or the one that was there `first`, or the one that is `sooner`. That of an entry whose thing was
-- found ended stands against none. With `listed` only an entry that is on the list gets the time.
-- @include watch_ended
-- @include watch_clock
-- @include watch_live
local function watch_put(watch, clock, entry, when, stands, now)
  watch_clock(watch, clock, now)
  local was = tonumber(redis.call('ZSCORE', watch, entry) or 0)
  if stands == 'listed' and was == 0 then return -1 end
  if was >= watch_ended() then was = 0 end
  if stands == 'later' and was > when or stands == 'first' and was > 0 then return was end
  if stands == 'sooner' and was > 0 and was < when then
    if was % 1 ~= 0.5 then return was end
    -- It is claimed. As with the other words the claim ends: its owner may not have seen what the caller has.
    when = math.floor(was)
  end
  redis.call('ZADD', watch, string.format('%.0f', when), entry)
  watch_live(watch)
  return when
end
