-- Delete a task with its journal and its list of children, and end its lease, once per call: the
-- worker that runs it can write no more, and no worker can start it.
-- KEYS task      hash: attempts, epoch, job
-- KEYS tasks     zset: task_id -> expiry in us
-- KEYS lease     hash: owner, claim, epoch, expires; its epoch stays, so that the next is greater
-- KEYS journal   hash: entry -> JSON
-- KEYS children  zset: task_id -> expiry in us: the tasks that it has spawned
-- ARGV task_id   the task's id
-- ARGV lease_ms  how long the lease's epoch is remembered
-- Returns
--   {'OK', deleted}  1 if there was a task
-- @once
-- @idempotent

local was = redis.call('HMGET', task, 'attempts', 'epoch', 'job')
-- First: behind a removal a full server lets what follows pass too.
local deleted = redis.call('DEL', task)
redis.call('DEL', journal, children)
redis.call('ZREM', tasks, task_id)
-- A task that waits, or that never ran, may have none: what was said of it is not a later task's for that.
if was[2] then redis.call('HSETNX', lease, 'epoch', was[2]) end
if redis.call('HEXISTS', lease, 'epoch') == 1 or was[3] or tonumber(was[1] or 0) > 0 then
  redis.call('HINCRBY', lease, 'epoch', 1)
  redis.call('HDEL', lease, 'owner', 'claim')
  redis.call('PEXPIRE', lease, lease_ms)
end
return keep_reply({ 'OK', deleted })
