-- Record that a process must inspect a thing after a while. Of two times the later stands, or the one
-- given, or the one that was there, or the sooner one.
-- KEYS watch     zset: entry -> when, in ms
-- KEYS clock     string: when the list was last written, in ms
-- ARGV entry     what to look at
-- ARGV delay_ms  int: from now
-- ARGV stands    later, given, first or sooner; room for sooner on a full server too, of what is to make room there
-- Returns
--   {'OK', when}  in ms
-- @include now_ms
-- @include watch_live
-- @include watch_put

local now = now_ms()
-- Behind a lifetime a full server lets the rest pass.
if stands == 'room' then watch_live(watch) end
return { 'OK', watch_put(watch, clock, entry, now + delay_ms, stands == 'room' and 'sooner' or stands, now) }
