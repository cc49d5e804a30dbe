-- Claim a job's due occurrence for one scheduler, until its lease runs out. A repetition finds its own
-- claim.
-- KEYS job       hash: document, next, enabled, owner, until, length, occurrence, asked, begun, attempts
-- KEYS due       zset: job_id -> next occurrence in us
-- ARGV owner     id of this claim
-- ARGV lease_ms  int: milliseconds
-- ARGV job_id    the job's id
-- ARGV asked_us  what is due, as the caller said: microseconds
-- Returns
--   {'OK', document, occurrence, attempts}  how often it was begun before
--   {'HELD', left_ms}  another claim has it
--   {'DENIED'}         it is not due, or not enabled
--   {'MISSING'}        no such job any more
-- @include lease_left
-- @include now_ms

local was = redis.call('HMGET', job, 'document', 'next', 'enabled', 'owner', 'occurrence', 'attempts')
local occurrence, now = was[2], now_ms()
if not was[1] then
  redis.call('ZREM', due, job_id)
  return { 'MISSING' }
end
local left_ms = lease_left(job, now, 'until')
if was[4] ~= owner and left_ms > 0 then return { 'HELD', left_ms } end
if was[3] ~= '1' or occurrence == '' or tonumber(occurrence) > tonumber(asked_us) then return { 'DENIED' } end
local attempts = was[5] == occurrence and tonumber(was[6] or 0) or 0
redis.call('HSET', job, 'owner', owner, 'occurrence', occurrence, 'attempts', attempts, 'asked', asked_us,
  'until', string.format('%.0f', now + lease_ms), 'length', lease_ms)
return { 'OK', was[1], occurrence, attempts }
