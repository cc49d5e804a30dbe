-- Note how a member of a group ended, once, and end the group if it is sealed and that was the last.
-- KEYS[1] group    hash: version, write, order, status, pending, failed, places; =<task> -> place, outcome, place of the end; +<patch> -> place
-- KEYS[2] groups   zset: group_id -> expiry in us
-- ARGV[1] member   the group's id
-- ARGV[2] task     the task's id
-- ARGV[3] outcome  complete or failed
-- ARGV[4] patched  1 if the task left a patch
-- ARGV[5] patch_id text
-- ARGV[6] call     id of this call
-- ARGV[7] ttl_ms   of a group that goes on
-- ARGV[8] ended_ttl_ms  of one that is over
-- Returns
--   {'OK', status, completed}  completed is 1 for the one call that ended the group
--   {'DENIED', status}         the task is no member; nothing was written
--   {'MISSING'}                no such group
-- @include now_ms
-- @include record_write
-- @include group_settle
-- @include group_told
local group, groups = KEYS[1], KEYS[2]
local member, task, outcome, patched, patch_id = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local call, ttl_ms, ended_ttl_ms = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])

-- A caller may use one id for all steps of its job: each step is a call of its own.
call = 'finish ' .. task .. ' ' .. call
local is = redis.call('HMGET', group, 'status', '=' .. task)
if not is[1] then return { 'MISSING' } end
if not is[2] then return { 'DENIED', is[1] } end
local joined, was = string.match(is[2], '^(%d+) (%a+)')
if was ~= 'pending' then return group_told(group, call) end
local place = string.format('%.0f', redis.call('HINCRBY', group, 'places', 1))
local fields = { '=' .. task, joined .. ' ' .. outcome .. ' ' .. place }
if patched == '1' then
  fields[3], fields[4] = '+' .. patch_id, place
end
redis.call('HINCRBY', group, 'pending', -1)
if outcome == 'failed' then redis.call('HINCRBY', group, 'failed', 1) end
group_settle(group, call, now_ms())
local told = group_told(group, call)
local going_on = told[2] == 'open' or told[2] == 'sealed'
record_write(group, { key = groups, member = member }, call, going_on and ttl_ms or ended_ttl_ms, fields)
return told
