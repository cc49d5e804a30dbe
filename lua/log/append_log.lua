-- Append rows to a log: once per id, in the given order, trimmed and announced in the same step.
-- KEYS rows        stream: id, topic, row; entry <n>-<ms>
-- KEYS ids         hash: entry id -> n; '' -> head
-- KEYS lease       hash: epoch, claim; another key without one
-- ARGV channel     channel: <entry> <id length> <topic length> <id><topic><row>
-- ARGV mark        of the writer's lease, '' for none
-- ARGV topic       text, '' for none
-- ARGV max_rows    int: count, 0 for no limit
-- ARGV ttl_ms      int: milliseconds
-- ARGV announce    flag: publish them
-- ARGV rows_in..   long: entry id and row, in turn
-- Returns
--   {'OK', new, n, ...}  how many rows are new, then each row's number
--   {'LOST', epoch}      another claim has the lease; this call wrote nothing
-- Emits one message per new row on channel
-- @include now_text
-- @include fence
-- @include log_append
-- @each
-- @lasting

local log = {
  rows = rows, ids = ids, channel = channel,
  topic = topic, max_rows = max_rows, ttl_ms = ttl_ms, announce = announce, more = false,
}
local lost = fence(lease, mark)
if lost then return lost end
local reply, now, n, new = { 'OK', 0 }, now_text()
for i = rows_in_from, #rows_in, 2 do
  -- Trimmed at the end: an id that is there must not be gone by the time it is looked for.
  log.more = i + 2 < #rows_in
  n, new = log_append(log, rows_in[i], rows_in[i + 1], now)
  reply[2], reply[#reply + 1] = reply[2] + new, n
end
if new == 0 and reply[2] > 0 then
  -- The last row was there already, and so has trimmed nothing.
  local text = redis.call('HGET', log.ids, '')
  local head = log_head(text)
  log_trim(log, text, log_over(head.last - head.first + 1, log.max_rows), now)
end
return reply
