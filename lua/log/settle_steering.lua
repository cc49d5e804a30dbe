-- Let go of a session's steering that was held for a task that has ended: it lives no longer than the record that lives
-- longest, or as long as without a hold. A repetition finds it so.
-- KEYS rows   stream of the log
-- KEYS ids    hash: its ids; '' -> head
-- KEYS tasks  zset: task_id -> expiry in us
-- Returns
--   {'OK', changed}  1 if a lifetime was changed
-- @include now_ms
-- @include log_head
-- @include log_live
-- @include log_release

local text, now = redis.call('HGET', ids, ''), now_ms()
local head = log_head(text or nil)
if not text or not head.held then return { 'OK', 0 } end
local ends = math.ceil((redis.call('ZRANGE', tasks, -1, -1, 'WITHSCORES')[2] or 0) / 1000)
if ends >= head.held then return { 'OK', 0 } end
if ends <= math.max(head.expires, now) then return { 'OK', log_release(rows, ids, now) } end
head.held = ends
log_live(rows, ids, log_text(head), ends)
return { 'OK', 1 }
