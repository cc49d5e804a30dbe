-- Read an item of LangGraph's store, and let it live on if that is wanted.
-- KEYS item     hash: value, created, updated, ttl
-- ARGV refresh  flag: its lifetime begins again
-- Returns
--   {'OK', value, created, updated, ttl, refreshed}  1 if the server took a new lifetime
--   {'MISSING'}
-- @include unless_refused
-- @reading

local found = redis.call('HMGET', item, 'value', 'created', 'updated', 'ttl')
if not found[1] then return { 'MISSING' } end
local refreshed = refresh
  and unless_refused(function() redis.call('PEXPIRE', item, found[4]) end, 'PEXPIRE', item, found[4])
return { 'OK', found[1], found[2], found[3], found[4], refreshed and 1 or 0 }
