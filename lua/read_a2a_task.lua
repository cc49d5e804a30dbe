-- Read an A2A task as it stands at one moment, with the place of its newest update.
-- KEYS[1] task     hash: updated, context, state, status, final, document
-- KEYS[2] history  list: messages
-- KEYS[3] artifacts  list: what was added, in order
-- KEYS[4] ids      hash: id of a call -> n; '' -> head
-- ARGV[1] messages how many of the newest, 0 for none, -1 for all
-- ARGV[2] whole    1 with its artifacts
-- Returns
--   {'OK', fields, history, artifacts, last, last_ms}  last: the newest update's number
--   {'MISSING'}  no such task
-- @include log_head
local task, history, artifacts, ids = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local messages, whole = tonumber(ARGV[1]), ARGV[2]

local fields = redis.call('HGETALL', task)
if #fields == 0 then return { 'MISSING' } end
local said = messages == 0 and {} or redis.call('LRANGE', history, messages < 0 and 0 or -messages, -1)
local added = whole == '1' and redis.call('LRANGE', artifacts, 0, -1) or {}
local head = log_head(redis.call('HGET', ids, ''))
return { 'OK', fields, said, added, head.last, head.last_ms }
