-- Delete a task with what it noted and spawned, and end its lease: who runs it can write no more,
-- and nobody can start it.
-- KEYS[1] task     hash
-- KEYS[2] tasks    zset: task_id -> expiry in us
-- KEYS[3] lease    hash: owner, epoch, expires; its epoch stays, so that none is given twice
-- KEYS[4] journal  hash: entry -> JSON
-- KEYS[5] children zset: task_id -> expiry in us: the tasks that it has spawned
-- ARGV[1] member   the task's id
-- ARGV[2] keep_ms  how long the lease's epoch is remembered
-- Returns
--   {'OK', deleted}  1 if there was a task
local task, tasks, lease, journal, children = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local member, keep_ms = ARGV[1], ARGV[2]

if redis.call('HEXISTS', lease, 'epoch') == 1 then
  redis.call('HINCRBY', lease, 'epoch', 1)
  redis.call('HDEL', lease, 'owner')
  redis.call('PEXPIRE', lease, keep_ms)
end
local deleted = redis.call('DEL', task)
redis.call('DEL', journal, children)
redis.call('ZREM', tasks, member)
return { 'OK', deleted }
