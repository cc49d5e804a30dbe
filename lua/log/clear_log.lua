-- Drop every row of a log, once per call. Its numbers continue, so that no cursor can point into a
-- later log. A message that no row has makes its followers read the log.
-- KEYS rows     stream: id, topic, row
-- KEYS ids      hash: entry id -> n; '' -> head
-- ARGV channel  channel: ''
-- Returns
--   {'OK', dropped}  how many rows there were
-- Emits an empty message on channel
-- @include log_drop
-- @once
-- @idempotent

local dropped = log_drop(rows, ids)
-- Who may not publish may clear: followers look at the log from time to time.
redis.pcall('SPUBLISH', channel, '')
return keep_reply({ 'OK', dropped })
