-- Save a job and plan its next occurrence. A late save does not fire an occurrence again; a claimed
-- occurrence stays claimed. A repetition is known among the last eight saves, so what others saved since stays.
-- KEYS job          hash: version, write, order, saves, next, interval, enabled, fired and the fields given; saves:
--   of the last calls the end of the write
-- KEYS jobs         zset: job_id -> expiry in us
-- KEYS jobs_of      zset: job_id -> expiry in us, of its session
-- KEYS due          zset: job_id -> next occurrence in us
-- ARGV write        id of this call
-- ARGV ttl_ms       int: milliseconds, beyond the next occurrence
-- ARGV job_id       the job's id
-- ARGV next_us      when it is due, '' for never
-- ARGV interval_us  us, '' for a job that does not repeat
-- ARGV enabled      1 or 0
-- ARGV fields..     names and values, in turn
-- Returns
--   {'OK', version}  the new version; that of now for a repetition
-- @include now_ms
-- @include record_saves
-- @include record_write
-- @include job_next
-- @include job_plan
-- @lasting

local was = redis.call('HMGET', job, 'write', 'version', 'fired', 'saves')
if was[1] == write or saves_has(was[4], write) then return { 'OK', tonumber(was[2]) } end
-- A view from before the last firing must not bring an occurrence back.
local past = next_us ~= '' and was[3] and tonumber(next_us) <= tonumber(was[3])
if past and (interval_us ~= '' or next_us == was[3]) then next_us = job_next(next_us, interval_us, now_ms() * 1000) end
for name, value in pairs({ interval = interval_us, enabled = enabled, saves = saves_with(was[4], write) }) do
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
local version = record_write(job, { key = '' }, write, ttl_ms, fields)
job_plan({ job = job, jobs = jobs, jobs_of = jobs_of, due = due }, job_id, next_us, ttl_ms)
return { 'OK', version }
