-- Save a record that several indexes list, and let others list it no more, in one step, once per call, if it
-- is at the expected version.
-- KEYS record     hash: version, write, order and the fields given
-- KEYS indexes..  zset: member -> expiry in us
-- ARGV expected   version and, after a space, its write; '' for any
-- ARGV write      id of this call
-- ARGV ttl_ms     int: milliseconds
-- ARGV member     in the indexes
-- ARGV listed     int: the first so many indexes list it, the others do not
-- ARGV fields..   names and values, in turn
-- Returns
--   {'OK', version}  the new version
--   {'STALE', version, write}  the record is at this version; nothing was written
-- @include record_write
-- @include stale
-- @once
-- @idempotent
-- @lasting

local was = redis.call('HMGET', record, 'write', 'version', 'order')
local other = was[1] ~= write and stale(expected, was[2], was[1])
if other then return other end
local version
for place, index in ipairs(indexes) do
  if place <= listed then
    version = record_write(record, { key = index, member = member }, write, ttl_ms, fields, was)
  else
    redis.call('ZREM', index, member)
  end
end
return keep_reply({ 'OK', version })
