-- Drop every row of a log, once per call. Its numbers continue, so that no cursor can point into a
-- later log.
-- KEYS rows  stream: id, topic, row
-- KEYS ids   hash: entry id -> n; '' -> head
-- Returns
--   {'OK', dropped}  how many rows there were
-- @include log_drop
-- @once
-- @idempotent

return keep_reply({ 'OK', log_drop(rows, ids) })
