-- Record that a process must inspect a thing after a while. Of two times the later stands, or the one
-- given, or the one that was there.
-- KEYS watch     zset: entry -> when, in ms
-- KEYS clock     string: when the list was last written, in ms
-- ARGV entry     what to look at
-- ARGV delay_ms  int: from now
-- ARGV stands    later, given or first
-- Returns
--   {'OK', when}  in ms
-- @include now_ms
-- @include watch_clock
-- @include watch_live

local now = now_ms()
local when = now + delay_ms
watch_clock(watch, clock, now)
local was = tonumber(redis.call('ZSCORE', watch, entry) or 0)
if stands == 'later' and was > when or stands == 'first' and was > 0 then return { 'OK', was } end
redis.call('ZADD', watch, string.format('%.0f', when), entry)
watch_live(watch)
return { 'OK', when }
