-- Append rows to a log: once per id, in the given order, trimmed and announced in the same step.
-- KEYS[1] rows     stream: id, topic, row; entry <n>-<ms>
-- KEYS[2] ids      hash: entry id -> n; '' -> head
-- KEYS[3] topic_rows  list: n of the rows of this topic; untouched without a topic
-- KEYS[4] channel  pub/sub: <entry> <id length> <topic length> <id><topic><row>
-- KEYS[5] lease    hash: epoch, claim; another key without one
-- ARGV[1] mark     of the writer's lease, '' for none
-- ARGV[2] topic    text, '' for none
-- ARGV[3] max_rows count, 0 for no limit
-- ARGV[4] ttl_ms   milliseconds
-- ARGV[5] announce 1 or 0
-- ARGV[6..] rows_in  entry id and row, in turn
-- Returns
--   {'OK', new, n, ...}  how many rows are new, then each row's number
--   {'LOST', epoch}      another claim has the lease; this call wrote nothing
-- Emits one message per new row on channel
-- @include now_text
-- @include fence
-- @include log_append
-- @each
local log = {
  rows = KEYS[1], ids = KEYS[2], topic_rows = KEYS[3], channel = KEYS[4],
  topic = ARGV[2], max_rows = tonumber(ARGV[3]), ttl_ms = tonumber(ARGV[4]), announce = ARGV[5], more = false,
}
local lease, mark = KEYS[5], ARGV[1]
local rows_in, from = ARGV, 6

local lost = fence(lease, mark)
if lost then return lost end
local reply, now, n, new = { 'OK', 0 }, now_text()
for i = from, #rows_in, 2 do
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
