-- Note which steps of a running task take long, for those who look at it. A later call replaces it, so a
-- repetition does no harm.
-- KEYS task   hash: attempts, doing; another version is not made of it
-- KEYS lease  hash: epoch, claim
-- ARGV mark   of the worker's lease
-- ARGV steps  JSON: each step, its attempt, and for how many ms it runs
-- Returns
--   {'OK'}           it is recorded
--   {'LOST', epoch}  another claim has the lease; nothing was written
--   {'MISSING'}      no such task
-- @include now_ms
-- @include fence

local lost = fence(lease, mark)
if lost then return lost end
local attempts = redis.call('HGET', task, 'attempts')
if not attempts then return { 'MISSING' } end
redis.call('HSET', task, 'doing', string.format('[%s,%.0f,', attempts, now_ms()) .. steps .. ']')
return { 'OK' }
