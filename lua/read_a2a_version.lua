-- Read an A2A task with its version, and whether its owner still lives.
-- KEYS[1] task     hash: state, phase, version, at, body, announce
-- KEYS[2] lease    hash: owner, epoch, expires, length
-- Returns
--   {'OK', version, at, state, phase, owner, epoch, left_ms, body, announce}  below 1 ms left it is
--     taken for dead; announce is 1 if its end is to be announced
--   {'MISSING'}    there is none
-- @include lease_left
-- @include now_ms
local task, lease = KEYS[1], KEYS[2]

local found = redis.call('HMGET', task, 'version', 'at', 'state', 'phase', 'body', 'announce')
if not found[1] then return { 'MISSING' } end
local held, left_ms = redis.call('HMGET', lease, 'owner', 'epoch'), lease_left(lease, now_ms())
return { 'OK', tonumber(found[1]), tonumber(found[2]), found[3], found[4], held[1] or '', tonumber(held[2] or 0), left_ms, found[5] or '', tonumber(found[6] or 0) }
