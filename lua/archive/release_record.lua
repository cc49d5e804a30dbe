-- Let go of a record that is held for the archive, archived or not: it expires when it would have, a minute from now
-- at least. What is beside it and was held alone is shortened too. A repetition finds nothing held.
-- KEYS record    hash: version, write, status; archive_hold
-- KEYS index     zset: member -> expiry in us; untouched without a member
-- KEYS beside    hash: what lives as long as the record; the record itself if there is none
-- ARGV member    in the index, '' for none
-- ARGV alone_ms  int: how long what was held alone lives then, at most
-- ARGV looks     flag: change nothing
-- Returns
--   {'OK', left_ms, stamp}  it was held; what is left of its lifetime without that, and status, version and write
--   {'STALE'}               what is beside it was held alone
--   {'MISSING'}             neither is held
-- @include now_ms
-- @include archive_held
-- @include archive_hold
-- @include archive_place

local now = now_ms()
local before = archive_held(record)
if before then
  local was = redis.call('HMGET', record, 'status', 'version', 'write')
  if not looks then
    local held, ends = archive_release(record, { beside }, now)
    if member ~= '' then archive_place_release(index, member, held, ends) end
  end
  local stamp = (was[1] or '') .. ' ' .. (was[2] or '0') .. ' ' .. (was[3] or '')
  return { 'OK', tonumber(before) - now, stamp }
end
-- Half of a hold. A record that was saved since has a lifetime of its own.
local over = beside ~= record and redis.call('PTTL', beside) - math.max(redis.call('PTTL', record), alone_ms)
if not over or over < 17280000000 then return { 'MISSING' } end
if not looks then redis.call('PEXPIRE', beside, alone_ms) end
return { 'STALE' }
