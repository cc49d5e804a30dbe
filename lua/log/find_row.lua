-- Return the position of a row in a log by its id.
-- KEYS rows    stream: id, topic, row
-- KEYS ids     hash: entry id -> n; '' -> head
-- ARGV row_id  entry id
-- Returns
--   {'OK', n, ms}
--   {'MISSING'}    no such row is kept

local n = redis.call('HGET', ids, row_id)
local row = n and redis.call('XRANGE', rows, n, n)[1]
if not row then return { 'MISSING' } end
return { 'OK', tonumber(n), tonumber(string.match(row[1], '-(%d+)')) }
