-- Append rows to a log: once per id, in the given order, trimmed and announced in the same step.
-- KEYS[1] rows     stream: id, topic, row; entry <n>-<ms>
-- KEYS[2] ids      hash: entry id -> n; '' -> head
-- KEYS[3] topic_rows  list: n of the rows of this topic; untouched without a topic
-- KEYS[4] channel  pub/sub: <entry> <id length> <topic length> <id><topic><row>
-- KEYS[5] lease    hash: epoch
-- ARGV[1] epoch    of the writer's lease, '' for none
-- ARGV[2] topic    text, '' for none
-- ARGV[3] max_rows count, 0 for no limit
-- ARGV[4] ttl_ms   milliseconds
-- ARGV[5] announce 1 or 0
-- ARGV[6..] rows_in  entry id and row, in turn
-- Returns
--   {'OK', new, n, ...}  how many rows are new, then each row's number
--   {'LOST', epoch}      the lease is at a later epoch; this call wrote nothing
-- Emits one message per new row on channel
-- @include now_ms
-- @include fence
-- @include log_head
-- @include log_append
-- @include log_trim
-- @include log_close
local rows, ids, topic_rows, channel, lease = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local epoch, topic, max_rows, ttl_ms, announce = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local rows_in = { unpack(ARGV, 6) }

local lost = fence(lease, epoch)
if lost then return lost end
local log = log_head(ids)
log.rows, log.ids, log.topic_rows, log.channel = rows, ids, topic_rows, channel
log.topic, log.announce, log.now = topic, announce, now_ms()
local reply = { 'OK', 0 }
for i = 1, #rows_in, 2 do
  local n, new = log_append(log, rows_in[i], rows_in[i + 1])
  reply[2] = reply[2] + new
  reply[#reply + 1] = n
end
if reply[2] > 0 then
  log_trim(log, max_rows, ttl_ms)
  log_close(log, ttl_ms)
end
return reply
