-- Save a record at whatever version it is, if the writer still holds its lease. Once per call: what others
-- save before a repetition stays.
-- KEYS record          hash: version, write, order and the fields given
-- KEYS index           zset: member -> expiry in us; untouched without a member
-- KEYS lease           hash: epoch, claim
-- ARGV mark            of the writer's lease, '' for none
-- ARGV only_if_there   flag: do not make a record that is absent
-- ARGV write           id of this call
-- ARGV ttl_ms          int: milliseconds
-- ARGV member          in the index, '' for none
-- ARGV fields..        names and values, in turn
-- Returns
--   {'OK', version}    the new version
--   {'MISSING'}        there is no record; nothing was written
--   {'LOST', epoch}    another claim has the lease; nothing was written
-- @include fence
-- @include record_write
-- @each
-- @once
-- @idempotent
-- @lasting

local lost = fence(lease, mark)
if lost then return lost end
local was = redis.call('HMGET', record, 'write', 'version', 'order')
if only_if_there and not was[2] then return keep_reply({ 'MISSING' }) end
local place = { key = member ~= '' and index or '', member = member }
return keep_reply({ 'OK', record_write(record, place, write, ttl_ms, fields, was) })
