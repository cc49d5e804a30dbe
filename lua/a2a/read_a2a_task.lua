-- Read an A2A task as it stands at one moment, with its version and its owner's lease. Nobody holds one that is not
-- there, such as one that has expired: its lease is removed. A repetition does the same.
-- KEYS task       hash: as write_a2a_task writes it
-- KEYS lease      hash: owner, epoch, expires, length
-- KEYS history    list: messages; may be absent
-- KEYS artifacts  list: what was added, in order; may be absent
-- ARGV messages   int: how many of the newest, 0 for none, -1 for all
-- ARGV whole      flag: with its artifacts
-- Returns
--   {'OK', owner, epoch, left_ms, history, artifacts, fields}  below 1 ms left the owner counts as dead
--   {'MISSING'}    there is none
-- @include lease_left
-- @include now_ms

local fields = redis.call('HGETALL', task)
if #fields == 0 then
  redis.call('DEL', lease)
  return { 'MISSING' }
end
local held, left_ms = redis.call('HMGET', lease, 'owner', 'epoch'), lease_left(lease, now_ms())
local newest = messages == 0 and {} or redis.call('LRANGE', history, messages < 0 and 0 or -messages, -1)
local added = whole and redis.call('LRANGE', artifacts, 0, -1) or {}
return { 'OK', held[1] or '', tonumber(held[2] or 0), left_ms, newest, added, fields }
