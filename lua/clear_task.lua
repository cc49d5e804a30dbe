-- Delete a task with its journal and its list of children, and end its lease, once per call: the
-- worker that runs it can write no more, and no worker can start it.
-- KEYS[1] task     hash
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] tasks    zset: task_id -> expiry in us
-- KEYS[4] lease    hash: owner, claim, epoch, expires; its epoch stays, so that the next is greater
-- KEYS[5] journal  hash: entry -> JSON
-- KEYS[6] children zset: task_id -> expiry in us: the tasks that it has spawned
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] member   the task's id
-- ARGV[3] lease_ms how long the lease's epoch is remembered
-- Returns
--   {'OK', deleted}  1 if there was a task
-- @include call_noted
-- @include call_note
-- @idempotent
local task, call, tasks, lease, journal, children = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local keep_ms, member, lease_ms = ARGV[1], ARGV[2], ARGV[3]

local done = call_noted(call)
if done then return done end
if redis.call('HEXISTS', lease, 'epoch') == 1 then
  redis.call('HINCRBY', lease, 'epoch', 1)
  redis.call('HDEL', lease, 'owner', 'claim')
  redis.call('PEXPIRE', lease, lease_ms)
end
local deleted = redis.call('DEL', task)
redis.call('DEL', journal, children)
redis.call('ZREM', tasks, member)
return call_note(call, keep_ms, { 'OK', deleted })
