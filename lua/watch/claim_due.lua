-- Take what is due from a watch list, and put it off so that one sweeper at a time looks at it.
-- KEYS watch    zset: entry -> when, in ms
-- KEYS clock    string: when the list was last written, in ms
-- ARGV limit    int: entries at most
-- ARGV hold_ms  int: until an entry is due again, unless it is taken out or put off
-- Returns
--   {'OK', mark, entry, was, ...}  the time that they have now; what was due, the longest due first,
--                    each with the time that it had
-- @include now_ms
-- @include watch_clock
-- @include watch_live

local now = now_ms()
-- Nothing is written while there is nothing to do.
if tonumber(redis.call('GET', clock) or 0) > now then watch_clock(watch, clock, now) end
local due = redis.call('ZRANGEBYSCORE', watch, '-inf', string.format('%.0f', now), 'WITHSCORES',
  'LIMIT', 0, limit)
-- Half a millisecond off every time that is put: an entry that has this time is this claim's still,
-- and nobody has put it anew since.
local mark = string.format('%.1f', now + hold_ms - 0.5)
local reply = { 'OK', mark }
if #due > 0 then
  watch_clock(watch, clock, now)
  watch_live(watch)
end
for i = 1, #due, 2 do
  redis.call('ZADD', watch, mark, due[i])
  reply[i + 2], reply[i + 3] = due[i], due[i + 1]
end
return reply
