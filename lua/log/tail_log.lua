-- Read the newest rows of a log after an id, all rows or one topic's. An unknown id is no cursor.
-- KEYS rows        stream: id, topic, row
-- KEYS ids         hash: entry id -> n; '' -> head
-- ARGV after_id    entry id, '' for none
-- ARGV before      n of the row behind them, '' for the newest
-- ARGV count       int: rows at most
-- ARGV most_bytes  int: no row more once those found have so many
-- ARGV topic       text, '' for all rows
-- Returns
--   {'OK', rows, cut}  the newest first; 1 if there may be more of them, which were left out for their bytes
-- @include log_newest
-- @include topic_newest
-- @include topic_fetch

local after = after_id ~= '' and tonumber(redis.call('HGET', ids, after_id) or 0) or 0
if topic == '' then return { 'OK', log_newest(rows, after, before, count, most_bytes) } end
local numbers = topic_newest(ids, topic, after, tonumber(before) or math.huge, count)
return { 'OK', topic_fetch(rows, numbers, most_bytes) }
