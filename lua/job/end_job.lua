-- End the occurrence that a claim holds, as fired, and move the job on to its next one, once
-- per call.
-- KEYS job      hash: owner, occurrence, next, interval, asked, fired, ended
-- KEYS jobs     zset: job_id -> expiry in us
-- KEYS jobs_of  zset: job_id -> expiry in us, of its session
-- KEYS due      zset: job_id -> next occurrence in us
-- ARGV owner    id of the claim
-- ARGV job_id   the job's id
-- ARGV ttl_ms   int: milliseconds, beyond the next occurrence
-- Returns
--   {'OK', next_us}  when it is due next, '' for never
--   {'LOST'}         another claim has it
-- @include now_ms
-- @include job_end
-- @once
-- @lasting

local was = redis.call('HMGET', job, 'owner', 'ended', 'next')
if was[2] == owner then return { 'OK', was[3] } end
if was[1] ~= owner then return { 'LOST' } end
local keys = { job = job, jobs = jobs, jobs_of = jobs_of, due = due }
return keep_reply({ 'OK', job_end(keys, job_id, ttl_ms, now_ms()) })
