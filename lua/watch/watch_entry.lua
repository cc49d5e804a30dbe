-- Record that a process must inspect a thing after a while. Of two times the later stands, or the one
-- given, or the one that was there, or the sooner one.
-- KEYS watch     zset: entry -> when, in ms
-- KEYS clock     string: when the list was last written, in ms
-- ARGV entry     what to look at
-- ARGV delay_ms  int: from now
-- ARGV stands    later, given, first or sooner
-- Returns
--   {'OK', when}  in ms
-- @include now_ms
-- @include watch_put

local now = now_ms()
return { 'OK', watch_put(watch, clock, entry, now + delay_ms, stands, now) }
