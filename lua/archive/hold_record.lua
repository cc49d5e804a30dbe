-- Read a record for the archive, and keep it from expiring before it is archived. A repetition reads and keeps the
-- same.
-- KEYS record    hash: version, write; archive_hold, archived
-- KEYS index     zset: member -> expiry in us; untouched without a member
-- ARGV member    in the index, '' for none
-- ARGV least_ms  int: a lifetime that is shorter is extended
-- ARGV hold_ms   int: how long it is then
-- ARGV whole     flag: also read what there is
-- Returns
--   {'OK', stamp, now, held, fields}  version and write; the time in us; 1 if the record is kept from expiring;
--                     names and values, in turn, empty unless whole
--   {'COUNTED', stamp}  it is archived as it is
--   {'MISSING'}         there is none
-- @include now_us
-- @include archive_hold
-- @include archive_place

local was = redis.call('HMGET', record, 'version', 'write', 'archived')
if not was[1] then return { 'MISSING' } end
local stamp, us = was[1] .. ' ' .. (was[2] or ''), now_us()
local now = math.floor(us / 1000)
if was[3] == stamp then return { 'COUNTED', stamp } end
if archive_hold(record, {}, least_ms, hold_ms, now) == 1 and member ~= '' then
  archive_place_hold(index, member, now, hold_ms)
end
local held = redis.call('HEXISTS', record, 'archive_hold')
return { 'OK', stamp, string.format('%.0f', us), held, whole and redis.call('HGETALL', record) or {} }
