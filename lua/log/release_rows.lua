-- Let the rows of a log go up to one that is kept elsewhere: the older ones of them, and the whole log in time if
-- that row is its last. A log that does not have that row, or has it at another time, is left as it is: the
-- server's history went back. A repetition does the same.
-- KEYS rows    stream of the log
-- KEYS ids     hash: its ids; '' -> head
-- ARGV n       int: the number of the last row that is kept elsewhere
-- ARGV at_ms   int: its time
-- ARGV ttl_ms  int: for how long a row stays after its time
-- Returns
--   {'OK', more}  1 if there is more to drop
--   {'STALE'}     there is no such row
-- @include now_ms
-- @include log_head
-- @include log_live
-- @include log_trim

local text, now = redis.call('HGET', ids, ''), now_ms()
local head = log_head(text)
local entry = string.format('%.0f-%.0f', n, at_ms)
if head.last ~= n or head.last_ms ~= at_ms then
  if #redis.call('XRANGE', rows, entry, entry) == 0 then return { 'STALE' } end
elseif now + math.max(ttl_ms, 60000) < head.expires then
  -- What is appended next sees a short lifetime, and extends it again.
  head.expires = math.max(at_ms + ttl_ms, now + 60000)
  text = log_text(head)
  log_live(rows, ids, text, head.expires)
end
-- No row behind that one is dropped, however old it is.
local horizon = math.min(now - ttl_ms, at_ms)
if head.first_ms == 0 or head.first >= n or head.first_ms >= horizon then return { 'OK', 0 } end
log_trim({ rows = rows, ids = ids, ttl_ms = now - horizon, max_rows = 0 }, text, false, now)
head = log_head(redis.call('HGET', ids, ''))
return { 'OK', (head.first < n and head.first_ms < horizon) and 1 or 0 }
