-- Drop every row of a log. Its numbers go on, so that no cursor can point into another life.
-- KEYS[1] rows     stream: id, topic, row
-- KEYS[2] ids      hash: entry id -> n; '' -> head
-- KEYS[3..] topics lists: n of the rows of a topic
-- Returns
--   {'OK', dropped}  how many rows there were
-- @include log_drop
local rows, ids = KEYS[1], KEYS[2]
local keys, from = KEYS, 3

for i = from, #keys do redis.call('UNLINK', keys[i]) end
return { 'OK', log_drop(rows, ids) }
