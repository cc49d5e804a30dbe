-- Drop every row of a log. Its numbers go on, so that no cursor can point into another life.
-- KEYS[1] rows     stream: id, topic, row
-- KEYS[2] ids      hash: entry id -> n; '' -> head
-- KEYS[3..] topics lists: n of the rows of a topic
-- Returns
--   {'OK', dropped}  how many rows there were
-- @include log_head
local rows, ids = KEYS[1], KEYS[2]

local head, dropped = log_head(redis.call('HGET', ids, '')), redis.call('XLEN', rows)
local expires = redis.call('PEXPIRETIME', ids)
for _, key in ipairs(KEYS) do redis.call('UNLINK', key) end
if head.last == 0 then return { 'OK', dropped } end
-- As expired at once: the next append then gives the new stream its lifetime.
head.first, head.first_ms, head.expires, head.before_ms = head.last + 1, 0, 0, head.last_ms
redis.call('HSET', ids, '', log_text(head))
redis.call('PEXPIREAT', ids, string.format('%.0f', expires))
return { 'OK', dropped }
