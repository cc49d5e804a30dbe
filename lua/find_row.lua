-- Return the position of a row in a log by its id.
-- KEYS[1] rows     stream: id, topic, row
-- KEYS[2] ids      hash: entry id -> n; '' -> head
-- ARGV[1] id       entry id
-- Returns
--   {'OK', n, ms}
--   {'MISSING'}    no such row is kept
local rows, ids = KEYS[1], KEYS[2]
local id = ARGV[1]

local n = redis.call('HGET', ids, id)
local row = n and redis.call('XRANGE', rows, n, n)[1]
if not row then return { 'MISSING' } end
return { 'OK', tonumber(n), tonumber(string.match(row[1], '-(%d+)')) }
