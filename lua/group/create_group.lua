-- Write a group of tasks down, unless there is an open one of its name in its turn. A repetition finds it.
-- KEYS group       hash: version, write, order and the fields given
-- KEYS groups      zset: group_id -> expiry in us
-- KEYS names       hash: turn and name -> group_id: groups that are open
-- ARGV group_id    the group's id
-- ARGV alias       turn and name
-- ARGV instead_of  '=' and the id of the group of this name that is known not to be open; '' for none
-- ARGV write       id of this call
-- ARGV ttl_ms      int: milliseconds
-- ARGV fields..    names and values, in turn
-- Returns
--   {'OK', group_id, new}  the group of this name; new is 0 if it was there
-- @include record_write
-- @include lives

local found = redis.call('HGET', names, alias)
if found and found ~= group_id and '=' .. found ~= instead_of then return { 'OK', found, 0 } end
if redis.call('EXISTS', group) == 1 then return { 'OK', group_id, redis.call('HGET', group, 'write') == write and 1 or 0 } end
record_write(group, { key = groups, member = group_id }, write, ttl_ms, fields)
redis.call('HSET', names, alias, group_id)
lives(names, ttl_ms)
-- Some are of groups that have expired while they were open.
if redis.call('HLEN', names) > redis.call('ZCARD', groups) then
  local flat = redis.call('HGETALL', names)
  for i = 1, #flat, 2 do
    if not redis.call('ZSCORE', groups, flat[i + 1]) then redis.call('HDEL', names, flat[i]) end
  end
end
return { 'OK', group_id, 1 }
