-- End the occurrence that a claim holds, as fired, and move the job on to its next one.
-- KEYS[1] job      hash: owner, occurrence, next, interval, asked, fired, ended
-- KEYS[2] jobs     zset: job_id -> expiry in us
-- KEYS[3] jobs_of  zset: job_id -> expiry in us, of its session
-- KEYS[4] due      zset: job_id -> next occurrence in us
-- ARGV[1] owner    id of the claim
-- ARGV[2] member   the job's id
-- ARGV[3] ttl_ms   milliseconds, beyond the next occurrence
-- Returns
--   {'OK', next_us}  when it is due next, '' for never
--   {'LOST'}         another claim has it
-- @include now_ms
-- @include job_end
local job, jobs, jobs_of, due = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, member, ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local was = redis.call('HMGET', job, 'owner', 'ended', 'next')
if was[2] == owner then return { 'OK', was[3] } end
if was[1] ~= owner then return { 'LOST' } end
local keys = { job = job, jobs = jobs, jobs_of = jobs_of, due = due }
return { 'OK', job_end(keys, member, ttl_ms, now_ms()) }
