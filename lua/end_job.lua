-- End the occurrence that a claim holds, as fired, and move the job on to its next one, once
-- per call.
-- KEYS[1] job      hash: owner, occurrence, next, interval, asked, fired, ended
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] jobs     zset: job_id -> expiry in us
-- KEYS[4] jobs_of  zset: job_id -> expiry in us, of its session
-- KEYS[5] due      zset: job_id -> next occurrence in us
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] owner    id of the claim
-- ARGV[3] member   the job's id
-- ARGV[4] ttl_ms   milliseconds, beyond the next occurrence
-- Returns
--   {'OK', next_us}  when it is due next, '' for never
--   {'LOST'}         another claim has it
-- @include call_noted
-- @include call_note
-- @include now_ms
-- @include job_end
local job, call, jobs, jobs_of, due = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local keep_ms, owner, member, ttl_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local done = call_noted(call)
if done then return done end
local was = redis.call('HMGET', job, 'owner', 'ended', 'next')
if was[2] == owner then return { 'OK', was[3] } end
if was[1] ~= owner then return { 'LOST' } end
local keys = { job = job, jobs = jobs, jobs_of = jobs_of, due = due }
return call_note(call, keep_ms, { 'OK', job_end(keys, member, ttl_ms, now_ms()) })
