-- Read the newest rows of a log after an id, all rows or one topic's. An unknown id is no cursor.
-- KEYS rows        stream: id, topic, row
-- KEYS ids         hash: entry id -> n; '' -> head
-- ARGV after_id    entry id, '' for none
-- ARGV count       int: rows at most
-- ARGV topic       text, '' for all rows
-- Returns
--   {'OK', rows}  newest first without a topic, oldest first with one
-- @include topic_newest
-- @include topic_fetch

local after = after_id ~= '' and tonumber(redis.call('HGET', ids, after_id) or 0) or 0
if topic == '' then
  return { 'OK', redis.call('XREVRANGE', rows, '+', string.format('%.0f', after + 1), 'COUNT', count) }
end
return { 'OK', (topic_fetch(rows, topic_newest(ids, topic, after, count), 0)) }
