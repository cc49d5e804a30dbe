-- Change the priority of a task that is not over. How long it lives stays as it is: a task that waits
-- for a pause lives longer than others.
-- KEYS task      hash: version, write, status, finished, priority
-- KEYS lease     hash: epoch, claim
-- ARGV mark      of the worker's lease, '' for anybody else
-- ARGV expected  version and, after a space, its write; the version alone; '' for any
-- ARGV write     id of this call
-- ARGV priority  to be
-- Returns
--   {'OK', version}      it is changed
--   {'STALE', version, write}  the task is at this version; nothing was written
--   {'DENIED', status}   the task is over; nothing was written
--   {'LOST', epoch}      another claim has the lease; nothing was written
--   {'MISSING'}          no such task
-- @include fence
-- @include stale

local was = redis.call('HMGET', task, 'status', 'version', 'write', 'finished')
if not was[1] then return { 'MISSING' } end
if was[3] == write then return { 'OK', tonumber(was[2]) } end
local lost = fence(lease, mark)
if lost then return lost end
local other = stale(expected, was[2], was[3])
if other then return other end
if was[4] == '1' then return { 'DENIED', was[1] } end
redis.call('HSET', task, 'write', write, 'priority', priority)
return { 'OK', redis.call('HINCRBY', task, 'version', 1) }
