-- Let go of a log that is held for the archive, archived or not: it expires when it would have, a minute from now at
-- least. A repetition finds nothing held.
-- KEYS rows    stream of the log
-- KEYS ids     hash: its ids; '' -> head
-- ARGV looks   flag: change nothing
-- Returns
--   {'OK', left_ms}  it was held; what is left of its lifetime without that
--   {'MISSING'}      it is not held
-- @include now_ms
-- @include log_head
-- @include log_release

local text, now = redis.call('HGET', ids, ''), now_ms()
local head = log_head(text or nil)
if not text or not head.held then return { 'MISSING' } end
if not looks then log_release(rows, ids, now) end
return { 'OK', head.expires - now }
