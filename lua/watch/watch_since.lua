-- Record that a process must look at a thing soon, and since when the thing waits for that. Of two times since
-- the first stands. A repetition does the same.
-- KEYS watch     zset: entry -> when, in ms
-- KEYS clock     string: when the list was last written, in ms
-- KEYS since     zset: entry -> since when it waits, in ms
-- ARGV entry     what to look at
-- ARGV delay_ms  int: from now
-- ARGV stands    which of two times to look: given or sooner
-- Returns
--   {'OK', when}  in ms
-- @include now_ms
-- @include watch_put

local now = now_ms()
redis.call('ZADD', since, 'NX', string.format('%.0f', now), entry)
redis.call('PEXPIRE', since, 34560000000)
return { 'OK', watch_put(watch, clock, entry, now + delay_ms, stands, now) }
