-- Note how a member of a group ended, once, and end the group if it is sealed and that was the last.
-- KEYS group         hash: version, write, order, status, pending, failed, places; =<task> -> place, outcome, place of the end; +<patch> -> place
-- KEYS groups        zset: group_id -> expiry in us
-- KEYS names         hash: turn and name -> group_id: groups that are open; lives as long as they
-- ARGV group_id      the group's id
-- ARGV task_id       the task's id
-- ARGV outcome       complete or failed
-- ARGV patch_id      '=' and the patch that the task left; '' for none
-- ARGV call          id of this call
-- ARGV ttl_ms        int: of a group that goes on
-- ARGV ended_ttl_ms  int: of one that is over
-- Returns
--   {'OK', status, completed}  completed is 1 for the one call that ended the group
--   {'DENIED', status}         the task is no member; nothing was written
--   {'MISSING'}                no such group
-- @include now_ms
-- @include record_write
-- @include lives
-- @include group_settle
-- @include group_reply

-- A caller may use one id for all steps of its job: each step is a call of its own.
call = 'finish ' .. task_id .. ' ' .. call
local is = redis.call('HMGET', group, 'status', '=' .. task_id)
if not is[1] then return { 'MISSING' } end
if not is[2] then return { 'DENIED', is[1] } end
local joined, was = string.match(is[2], '^(%d+) (%a+)')
if was ~= 'pending' then return group_reply(group, call) end
local place = string.format('%.0f', redis.call('HINCRBY', group, 'places', 1))
local fields = { '=' .. task_id, joined .. ' ' .. outcome .. ' ' .. place }
if patch_id ~= '' then
  fields[3], fields[4] = '+' .. string.sub(patch_id, 2), place
end
redis.call('HINCRBY', group, 'pending', -1)
if outcome == 'failed' then redis.call('HINCRBY', group, 'failed', 1) end
group_settle(group, call, now_ms())
local reply = group_reply(group, call)
local going_on = reply[2] == 'open' or reply[2] == 'sealed'
record_write(group, { key = groups, member = group_id }, call, going_on and ttl_ms or ended_ttl_ms, fields)
if going_on then lives(names, ttl_ms) end
return reply
