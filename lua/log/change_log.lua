-- Change a log once for each name: drop its rows, append others, or both, in one step. A repetition
-- under the name does nothing, also when another change has dropped these rows since. Only so many
-- of the newest names are known.
-- KEYS rows        stream: id, topic, row; entry <n>-<ms>
-- KEYS ids         hash: entry id -> n; '' -> head
-- KEYS changes     zset: name -> time, later than that of the name before
-- KEYS lease       hash: epoch, claim; another key without one
-- ARGV mark        of the writer's lease, '' for none
-- ARGV name        of the change
-- ARGV most        int: names that are known
-- ARGV clears      flag: drop the rows that are there
-- ARGV max_rows    int: count, 0 for no limit
-- ARGV ttl_ms      int: milliseconds
-- ARGV rows_in..   long: entry id and row, in turn
-- Returns
--   {'OK', changed}  1 if it was made now, 0 if it was before
--   {'LOST', epoch}  another claim has the lease; this call changed nothing
-- @include now_text
-- @include fence
-- @include log_append
-- @include log_drop
-- @lasting

local lost = fence(lease, mark)
if lost then return lost end
if redis.call('ZSCORE', changes, name) then return { 'OK', 0 } end
local now = now_text()
local log = {
  rows = rows, ids = ids, topic = '', max_rows = max_rows, ttl_ms = ttl_ms, announce = false, more = false,
}
if clears then log_drop(rows, ids) end
for i = rows_in_from, #rows_in, 2 do
  log.more = i + 2 < #rows_in
  log_append(log, rows_in[i], rows_in[i + 1], now)
end
-- Last: what refuses a row before it leaves the name unknown.
-- Behind all others, also if the clock was set back: the lowest names are forgotten.
local newest = redis.call('ZRANGE', changes, -1, -1, 'WITHSCORES')[2]
redis.call('ZADD', changes, string.format('%.0f', math.max(now, (newest or 0) + 1)), name)
redis.call('ZREMRANGEBYRANK', changes, 0, -1 - most)
redis.call('PEXPIRE', changes, ttl_ms)
return { 'OK', 1 }
