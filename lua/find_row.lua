-- Return the position of a row in a log by its id, or the log's own end.
-- KEYS[1] rows     stream: id, topic, row
-- KEYS[2] ids      hash: entry id -> n; '' -> head
-- ARGV[1] id       entry id, '' for the end of the log
-- Returns
--   {'OK', n, ms}  ms is 0 for the start of an empty log
--   {'MISSING'}    no such row is kept
-- @include log_head
local rows, ids = KEYS[1], KEYS[2]
local id = ARGV[1]

if id == '' then
  local head = log_head(redis.call('HGET', ids, ''))
  return { 'OK', head.last, head.last_ms }
end
local n = redis.call('HGET', ids, id)
local row = n and redis.call('XRANGE', rows, n, n)[1]
if not row then return { 'MISSING' } end
return { 'OK', tonumber(n), tonumber(string.match(row[1], '-(%d+)')) }
