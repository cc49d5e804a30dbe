-- Take a pause off its session's list, if it is not open. Its task may have been retried since it was read, and
-- lists it again then. A repetition does as a new call.
-- KEYS task   hash: finished, order
-- KEYS tasks  zset: task_id -> expiry in us; \255 and a token's digest -> minus its expiry in ms
-- KEYS token  hash: state, order
-- Returns
--   {'OK', removed}
-- @include pause_member

local state, order = unpack(redis.call('HMGET', token, 'state', 'order'))
local finished, present = unpack(redis.call('HMGET', task, 'finished', 'order'))
if state == 'open' and finished ~= '1' and order == present then return { 'OK', 0 } end
return { 'OK', redis.call('ZREM', tasks, pause_member(token)) }
