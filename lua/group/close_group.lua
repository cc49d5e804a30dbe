-- Seal a group, which ends it if no member is pending, or end it as failed. A
-- repetition is known by its call, which the group keeps.
-- KEYS group         hash: version, write, order, status, sealed, ended, completer, <target>-by
-- KEYS groups        zset: group_id -> expiry in us
-- KEYS names         hash: turn and name -> group_id: groups that are open
-- ARGV group_id      the group's id
-- ARGV target        sealed or failed
-- ARGV alias         turn and name
-- ARGV call          id of this call
-- ARGV ttl_ms        int: of a group that goes on
-- ARGV ended_ttl_ms  int: of one that is over
-- Returns
--   {'OK', status, completed}  completed is 1 for the one call that ended the group
--   {'DENIED', status}         it is sealed, or over; nothing was written
--   {'MISSING'}                no such group
-- @include now_ms
-- @include record_write
-- @include group_settle
-- @include group_reply

call = target .. ' ' .. call
local is = redis.call('HMGET', group, 'status', target .. '-by')
if not is[1] then return { 'MISSING' } end
if is[2] == call then return group_reply(group, call) end
if is[1] ~= 'open' and (target == 'sealed' or is[1] ~= 'sealed') then return { 'DENIED', is[1] } end
local now = now_ms()
local fields = { 'status', target, target .. '-by', call, target == 'sealed' and 'sealed' or 'ended', string.format('%.0f', now) }
if target == 'failed' then
  fields[7], fields[8] = 'completer', call
end
if redis.call('HGET', names, alias) == group_id then redis.call('HDEL', names, alias) end
record_write(group, { key = groups, member = group_id }, call, ttl_ms, fields)
group_settle(group, call, now)
local reply = group_reply(group, call)
if reply[2] ~= 'sealed' then redis.call('PEXPIRE', group, ended_ttl_ms) end
return reply
