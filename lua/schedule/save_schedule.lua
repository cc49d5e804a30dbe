-- Save fields of a schedule, and when a worker must look at it. A repetition finds its own write.
-- KEYS schedule   hash: version, write, order, recent, after and the fields given
-- KEYS schedules  zset: schedule_id -> expiry in us
-- KEYS due        zset: schedule_id -> when a worker must look at it, in ms
-- KEYS clock      string: when that list was last written, in ms
-- ARGV write        id of this call
-- ARGV expected     version and, after a space, its write; 0 for absent
-- ARGV ttl_ms       int: milliseconds
-- ARGV schedule_id  the schedule's id
-- ARGV check_ms      int: from now, when a worker must look; '' leaves that as it is
-- ARGV sooner       flag: an earlier time stands. A claim ends: who has it may not have seen this save
-- ARGV restart      flag: no occurrence up to now is due any more
-- ARGV fields..     names and values, in turn
-- Returns
--   {'OK', version, now}       the new version; the server's time, in ms
--   {'STALE', version, write}  the schedule is at this version; nothing was written
-- @include now_ms
-- @include now_us
-- @include record_recent
-- @include record_write
-- @include stale
-- @include watch_put
-- @lasting

local now, was = now_ms(), redis.call('HMGET', schedule, 'write', 'version', 'order', 'recent')
local given = string.format('%.0f', now)
if was[1] == write then return { 'OK', tonumber(was[2]), given } end
local known, recent = record_recent(was[4], write, tonumber(was[2] or 0) + 1, now_us())
if known then return { 'OK', known, given } end
local other = stale(expected, was[2], was[1])
if other then return other end
fields[#fields + 1] = 'recent'
fields[#fields + 1] = recent
if restart then
  fields[#fields + 1] = 'after'
  fields[#fields + 1] = given
end
local version = record_write(schedule, { key = schedules, member = schedule_id }, write, ttl_ms, fields, was)
if check_ms then watch_put(due, clock, schedule_id, now + check_ms, sooner and 'sooner' or 'given', now) end
return { 'OK', version, given }
