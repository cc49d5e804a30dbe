-- Mark a record as archived at a version, and let it expire when it would have. A repetition finds the mark.
-- KEYS record  hash: version, write; archive_hold, archived
-- KEYS index   zset: member -> expiry in us; untouched without a member
-- ARGV member  in the index, '' for none
-- ARGV stamp   version and write that the archive was compared with
-- Returns
--   {'OK'}            it is marked
--   {'STALE', stamp}  it has changed since; nothing was written
--   {'MISSING'}       there is none
-- @include now_ms
-- @include archive_hold
-- @include archive_place

local was = redis.call('HMGET', record, 'version', 'write')
if not was[1] then return { 'MISSING' } end
local is = was[1] .. ' ' .. (was[2] or '')
if is ~= stamp then return { 'STALE', is } end
-- The release first: behind it a full server lets the mark pass.
local held, ends = archive_release(record, {}, now_ms())
redis.call('HSET', record, 'archived', stamp)
if ends and member ~= '' then archive_place_release(index, member, held, ends) end
return { 'OK' }
