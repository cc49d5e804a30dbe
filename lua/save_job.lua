-- Save a job and plan its next occurrence. One that was fired is not fired again for a late save;
-- one that somebody has claimed stays his.
-- KEYS[1] job      hash: version, write, order, next, interval, enabled, fired and the fields given
-- KEYS[2] jobs     zset: job_id -> expiry in us
-- KEYS[3] jobs_of  zset: job_id -> expiry in us, of its session
-- KEYS[4] due      zset: job_id -> next occurrence in us
-- ARGV[1] write    id of this call
-- ARGV[2] ttl_ms   milliseconds, beyond the next occurrence
-- ARGV[3] member   the job's id
-- ARGV[4] next_us  when it is due, '' for never
-- ARGV[5] interval us, '' for a job that does not repeat
-- ARGV[6] enabled  1 or 0
-- ARGV[7..] fields names and values, in turn
-- Returns
--   {'OK', version}  the new version
-- @include now_ms
-- @include record_write
-- @include job_next
-- @include job_plan
local job, jobs, jobs_of, due = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local write, ttl_ms, member, next_us, interval, enabled = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local fields = { unpack(ARGV, 7) }

local was = redis.call('HMGET', job, 'write', 'version', 'fired')
if was[1] == write then return { 'OK', tonumber(was[2]) } end
-- A view from before the last firing must not bring an occurrence back.
local past = next_us ~= '' and was[3] and tonumber(next_us) <= tonumber(was[3])
if past and (interval ~= '' or next_us == was[3]) then next_us = job_next(next_us, interval, now_ms() * 1000) end
for name, value in pairs({ interval = interval, enabled = enabled }) do
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
local version = record_write(job, { key = '' }, write, ttl_ms, fields)
job_plan({ job = job, jobs = jobs, jobs_of = jobs_of, due = due }, member, next_us, ttl_ms)
return { 'OK', version }
