-- Claim a job's due occurrence for one scheduler, under a lease. A repetition finds its own claim.
-- KEYS job       hash: document, next, enabled, occurrence, asked, attempts, and a lease
-- KEYS due       zset: job_id -> next occurrence in us
-- ARGV owner     id of this claim
-- ARGV lease_ms  int: milliseconds
-- ARGV job_id    the job's id
-- ARGV up_to_us  what is due, as the caller said: microseconds
-- Returns
--   {'OK', epoch, document, occurrence, attempts}  how often it was begun before
--   {'HELD', left_ms}  another claim has it
--   {'DENIED'}         it is not due, or not enabled
--   {'MISSING'}        no such job any more
-- @include lease_take
-- @include now_ms

local was = redis.call('HMGET', job, 'document', 'next', 'enabled', 'occurrence', 'attempts')
local occurrence = was[2]
if not was[1] then
  redis.call('ZREM', due, job_id)
  return { 'MISSING' }
end
if was[3] ~= '1' or occurrence == '' or tonumber(occurrence) > tonumber(up_to_us) then return { 'DENIED' } end
local epoch, left_ms = lease_take(job, owner, lease_ms, '', now_ms())
if not epoch then return { 'HELD', left_ms } end
local attempts = was[4] == occurrence and tonumber(was[5]) or 0
redis.call('HSET', job, 'occurrence', occurrence, 'attempts', attempts, 'asked', up_to_us)
return { 'OK', epoch, was[1], occurrence, attempts }
