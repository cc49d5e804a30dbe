-- Make a task a member of a group that is open.
-- KEYS group     hash: version, write, order, status, pending, places; =<task> -> place and outcome
-- KEYS groups    zset: group_id -> expiry in us
-- KEYS names     hash: turn and name -> group_id: groups that are open; lives as long as they
-- ARGV group_id  the group's id
-- ARGV task_id   the task's id
-- ARGV write     id of this call
-- ARGV ttl_ms    int: milliseconds
-- Returns
--   {'OK', new}         it is a member; new is 0 if it was one
--   {'DENIED', status}  the group is no longer open; nothing was written
--   {'MISSING'}         no such group
-- @include record_write
-- @include lives

local is = redis.call('HMGET', group, 'status', '=' .. task_id)
if not is[1] then return { 'MISSING' } end
if is[2] then return { 'OK', 0 } end
if is[1] ~= 'open' then return { 'DENIED', is[1] } end
local place = string.format('%.0f', redis.call('HINCRBY', group, 'places', 1))
redis.call('HINCRBY', group, 'pending', 1)
record_write(group, { key = groups, member = group_id }, write, ttl_ms, { '=' .. task_id, place .. ' pending 0' })
lives(names, ttl_ms)
return { 'OK', 1 }
