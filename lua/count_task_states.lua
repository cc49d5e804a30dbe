-- Count the registered tasks that are active, and those that have ended and are kept.
-- KEYS[1] active   zset: task_id -> expiry in ms
-- KEYS[2] kept     zset: task_id of a completed one -> expiry in ms
-- Returns
--   {'OK', active, completed}
-- @include now_ms
local active, kept = KEYS[1], KEYS[2]

-- The lists may name tasks whose time is over.
local now = string.format('%.0f', now_ms())
return { 'OK', redis.call('ZCOUNT', active, now, '+inf'), redis.call('ZCOUNT', kept, now, '+inf') }
