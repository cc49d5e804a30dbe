-- Write a group of tasks down, unless there is an open one of its name in its turn.
-- KEYS[1] group    hash: version, write, order and the fields given
-- KEYS[2] groups   zset: group_id -> expiry in us
-- KEYS[3] names    hash: turn and name -> group_id: groups that are open
-- ARGV[1] member   the group's id
-- ARGV[2] alias    turn and name
-- ARGV[3] replace  1 if the group that was found by name is known not to be open
-- ARGV[4] old      that group's id
-- ARGV[5] write    id of this call
-- ARGV[6] ttl_ms   milliseconds
-- ARGV[7..] fields names and values, in turn
-- Returns
--   {'OK', group_id, new}  the group of this name; new is 0 if it was there
-- @include record_write
local group, groups, names = KEYS[1], KEYS[2], KEYS[3]
local member, alias, replace, old, write = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local ttl_ms, fields = tonumber(ARGV[6]), { unpack(ARGV, 7) }

local found = redis.call('HGET', names, alias)
if found and found ~= member and not (replace == '1' and found == old) then return { 'OK', found, 0 } end
if redis.call('EXISTS', group) == 1 then return { 'OK', member, redis.call('HGET', group, 'write') == write and 1 or 0 } end
record_write(group, { key = groups, member = member }, write, ttl_ms, fields)
redis.call('HSET', names, alias, member)
redis.call('PEXPIRE', names, ttl_ms)
return { 'OK', member, 1 }
