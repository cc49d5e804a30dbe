-- List claims whose workers have had time to begin, the oldest first. Then those that were made before the clock
-- was set back: how old they are is not known.
-- KEYS claims       zset: task -> when its job was claimed, in ms
-- ARGV after        int: ms, behind the claims that are known
-- ARGV ahead        int: ms, behind the known ones of before the clock was set back
-- ARGV patience_ms  int: how long a worker may take
-- ARGV limit        int: claims at most
-- Returns
--   {'OK', now, task, claimed, ...}  the server's time; each task, and when it was claimed
-- @include now_ms
-- @include is_ahead

local now, last = now_ms(), redis.call('ZRANGE', claims, -1, -1, 'WITHSCORES')[2]
local listed = redis.call('ZRANGE', claims, string.format('(%.0f', after), string.format('%.0f', now - patience_ms),
  'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
if last and is_ahead(tonumber(last), now) then
  local from = string.format('(%.0f', math.max(ahead, now + 60000))
  local left = limit - #listed / 2
  for _, each in ipairs(redis.call('ZRANGE', claims, from, '+inf', 'BYSCORE', 'LIMIT', 0, left, 'WITHSCORES')) do
    listed[#listed + 1] = each
  end
end
return { 'OK', string.format('%.0f', now), unpack(listed) }
