-- Read a log forward from a cursor, all rows or one topic's, or say why that would skip rows.
-- KEYS rows        stream: id, topic, row
-- KEYS ids         hash: entry id -> n; '' -> head
-- ARGV after       n of the last row seen, '' to start with the oldest kept, -1 for no row of this log
-- ARGV after_ms    int: its time, 0 if unknown
-- ARGV count       int: rows at most
-- ARGV most_bytes  int: no row more once those found have so many
-- ARGV topic       text, '' for all rows
-- Returns
--   {'OK', first, last, last_ms, rows, cut}  the log's range, then rows as XRANGE gives them; 1 if there may be more
--                                            of them, which were left out for their bytes
--   {'GAP', reason, n, ms}  reason: trimmed, foreign, ahead or rewound; from which row to read on
-- @include log_head
-- @include log_position
-- @include log_rows
-- @include topic_first
-- @include topic_fetch

local head = log_head(redis.call('HGET', ids, ''))
local from = after == '' and head.first - 1 or tonumber(after)
if from == head.last and after_ms == head.last_ms then
  return { 'OK', head.first, head.last, head.last_ms, {} }
end
local reason, n, ms = log_position(rows, head, from, after_ms)
if reason then return { 'GAP', reason, n, ms } end
local found, cut
if topic == '' then
  found, cut = log_rows(rows, from, count, most_bytes)
else
  found, cut = topic_fetch(rows, topic_first(ids, topic, from, count), most_bytes)
end
return { 'OK', head.first, head.last, head.last_ms, found, cut }
