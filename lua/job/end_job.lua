-- End the occurrence that a claim holds, as fired: it will not be given out again. The job moves on to
-- its next one, unless it was planned again meanwhile. Once per call.
-- KEYS job      hash: occurrence, next, interval, enabled, asked, fired, ended, and a lease
-- KEYS jobs     zset: job_id -> expiry in us
-- KEYS jobs_of  zset: job_id -> expiry in us, of its session
-- KEYS due      zset: job_id -> next occurrence in us
-- ARGV mark     of the claim's lease
-- ARGV owner    id of the claim
-- ARGV job_id   the job's id
-- ARGV ttl_ms   int: milliseconds, beyond the next occurrence
-- Returns
--   {'OK', next_us}  when it is due next, '' for never
--   {'LOST', epoch}  another claim has it
-- @include fence
-- @include job_next
-- @include job_plan
-- @include now_ms
-- @once
-- @lasting

local was = redis.call('HMGET', job, 'ended', 'next', 'occurrence', 'interval', 'asked')
local next_us, occurrence = was[2], was[3]
if was[1] == owner then return { 'OK', next_us } end
local lost = fence(job, mark)
if lost then return lost end
if next_us == occurrence then
  next_us = job_next(occurrence, was[4], math.max(tonumber(was[5]), now_ms() * 1000))
end
redis.call('HSET', job, 'fired', occurrence, 'ended', owner)
redis.call('HDEL', job, 'owner', 'claim', 'expires', 'length', 'occurrence', 'asked', 'begun', 'attempts')
job_plan({ job = job, jobs = jobs, jobs_of = jobs_of, due = due }, job_id, next_us, ttl_ms)
return keep_reply({ 'OK', next_us })
