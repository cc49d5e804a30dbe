-- Save a record, if it is at the expected version and the writer still holds its lease.
-- KEYS[1] record   hash: version, write, order and the fields given
-- KEYS[2] index    zset: member -> expiry in us; untouched without a member
-- KEYS[3] lease    hash: epoch, claim
-- ARGV[1] mark     of the writer's lease, '' for none
-- ARGV[2] expected version and, after a space, its write; the version alone; 0 for absent, '+' for any
--   that is there, '' for any
-- ARGV[3] write    id of this call
-- ARGV[4] ttl_ms   milliseconds
-- ARGV[5] member   in the index, '' for none
-- ARGV[6..] fields names and values, in turn
-- Returns
--   {'OK', version}     the new version
--   {'STALE', version, write}  the record is at this version; nothing was written
--   {'LOST', epoch}     another claim has the lease; nothing was written
-- @include fence
-- @include record_write
-- @include stale
-- @each
local record, index, lease = KEYS[1], KEYS[2], KEYS[3]
local mark, expected, write, ttl_ms, member = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local fields = { unpack(ARGV, 6) }

local was = redis.call('HMGET', record, 'write', 'version', 'order')
if was[1] == write then return { 'OK', tonumber(was[2]) } end
local lost = fence(lease, mark)
if lost then return lost end
if expected == '+' then expected = was[2] or '+' end
local other = stale(expected, was[2], was[1])
if other then return other end
local place = { key = member ~= '' and index or '', member = member }
return { 'OK', record_write(record, place, write, ttl_ms, fields, was) }
