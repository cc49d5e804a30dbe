-- Save a record, if it is at the expected version and the writer still holds its lease. A repetition finds its
-- write among the last ones, so what others saved on top of it is no conflict.
-- KEYS record    hash: version, write, order, recent as of put_record, and the fields given
-- KEYS index     zset: member -> expiry in us; untouched without a member
-- KEYS lease     hash: epoch, claim
-- ARGV mark      of the writer's lease, '' for none
-- ARGV expected  version and, after a space, its write; the version alone; 0 for absent
-- ARGV write     id of this call
-- ARGV ttl_ms    int: milliseconds
-- ARGV member    in the index, '' for none
-- ARGV fields..  names and values, in turn
-- Returns
--   {'OK', version}     the new version
--   {'STALE', version, write}  the record is at this version; nothing was written
--   {'LOST', epoch}     another claim has the lease; nothing was written
-- @include fence
-- @include now_us
-- @include record_recent
-- @include record_write
-- @include stale
-- @each
-- @lasting

local was = redis.call('HMGET', record, 'write', 'version', 'order', 'recent')
if was[1] == write then return { 'OK', tonumber(was[2]) } end
local known, recent = record_recent(was[4], write, tonumber(was[2] or 0) + 1, now_us())
if known then return { 'OK', known } end
local lost = fence(lease, mark)
if lost then return lost end
local other = stale(expected, was[2], was[1])
if other then return other end
fields[#fields + 1] = 'recent'
fields[#fields + 1] = recent
local place = { key = member ~= '' and index or '', member = member }
return { 'OK', record_write(record, place, write, ttl_ms, fields, was) }
