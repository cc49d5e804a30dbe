-- Read a registered task as it stands at one moment, with the place of its newest event.
-- KEYS[1] task     hash: write, context, stream, state, created, completed
-- KEYS[2] ids      hash: event id -> n; '' -> head
-- Returns
--   {'OK', fields, last, last_ms}  last: the newest event's number, 0 if there was none
--   {'MISSING'}  no such task
-- @include log_head
local task, ids = KEYS[1], KEYS[2]

local fields = redis.call('HGETALL', task)
if #fields == 0 then return { 'MISSING' } end
local head = log_head(redis.call('HGET', ids, ''))
return { 'OK', fields, head.last, head.last_ms }
