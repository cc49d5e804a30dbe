-- Save a record at whatever version it is, if the writer still holds its lease. A repetition finds its
-- write among the last ones, so what others saved since stays.
-- KEYS record          hash: version, write, order, recent and the fields given; recent: of the last calls the
--   write, the version and when
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
-- @include now_us
-- @include record_recent
-- @include record_write
-- @each
-- @lasting

local was = redis.call('HMGET', record, 'write', 'version', 'order', 'recent')
if was[1] == write then return { 'OK', tonumber(was[2]) } end
local known, recent = record_recent(was[4], write, tonumber(was[2] or 0) + 1, now_us())
if known then return { 'OK', known } end
local lost = fence(lease, mark)
if lost then return lost end
if only_if_there and not was[2] then return { 'MISSING' } end
fields[#fields + 1] = 'recent'
fields[#fields + 1] = recent
local place = { key = member ~= '' and index or '', member = member }
return { 'OK', record_write(record, place, write, ttl_ms, fields, was) }
