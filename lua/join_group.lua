-- Make a task a member of a group that is open.
-- KEYS[1] group    hash: version, write, order, status, pending, places; =<task> -> place and outcome
-- KEYS[2] groups   zset: group_id -> expiry in us
-- ARGV[1] member   the group's id
-- ARGV[2] task     the task's id
-- ARGV[3] write    id of this call
-- ARGV[4] ttl_ms   milliseconds
-- Returns
--   {'OK', new}         it is a member; new is 0 if it was one
--   {'DENIED', status}  the group is no longer open; nothing was written
--   {'MISSING'}         no such group
-- @include record_write
local group, groups = KEYS[1], KEYS[2]
local member, task, write, ttl_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local is = redis.call('HMGET', group, 'status', '=' .. task)
if not is[1] then return { 'MISSING' } end
if is[2] then return { 'OK', 0 } end
if is[1] ~= 'open' then return { 'DENIED', is[1] } end
local place = string.format('%.0f', redis.call('HINCRBY', group, 'places', 1))
redis.call('HINCRBY', group, 'pending', 1)
record_write(group, { key = groups, member = member }, write, ttl_ms, { '=' .. task, place .. ' pending 0' })
return { 'OK', 1 }
