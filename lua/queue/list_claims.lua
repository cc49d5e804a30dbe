-- List claims whose workers have had time to begin, the oldest first.
-- KEYS claims       zset: task -> when its job was claimed, in ms
-- ARGV after        int: ms, behind the claims that are known
-- ARGV patience_ms  int: how long a worker may take
-- ARGV limit        int: claims at most
-- Returns
--   {'OK', now, task, claimed, ...}  the server's time; each task, and when it was claimed
-- @include now_ms

local now = now_ms()
local listed = redis.call('ZRANGE', claims, string.format('(%.0f', after), string.format('%.0f', now - patience_ms),
  'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
return { 'OK', string.format('%.0f', now), unpack(listed) }
