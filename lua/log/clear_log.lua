-- Drop every row of a log, once per call. Its numbers continue, so that no cursor can point into a
-- later log.
-- KEYS rows           stream: id, topic, row
-- KEYS ids            hash: entry id -> n; '' -> head
-- KEYS topic_lists..  long: lists: n of the rows of a topic
-- Returns
--   {'OK', dropped}  how many rows there were
-- @include log_drop
-- @once
-- @idempotent

for i = topic_lists_from, #topic_lists do redis.call('UNLINK', topic_lists[i]) end
return keep_reply({ 'OK', log_drop(rows, ids) })
