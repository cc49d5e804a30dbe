-- Take a task's lease and set it running, or say why not. A running task whose lease has run out
-- is taken over, and its holder counted as dead.
-- KEYS[1] task     hash: version, write, order, status, attempts, crashes and the fields given
-- KEYS[2] tasks    zset: task_id -> expiry in us
-- KEYS[3] lease    hash: owner, claim, epoch, expires
-- KEYS[4] rows     stream of the session's updates
-- KEYS[5] ids      hash: its ids
-- KEYS[6] topic_rows  list: the task's index in it
-- KEYS[7] channel  pub/sub
-- ARGV[1] owner    id of this claim
-- ARGV[2] lease_ms until it expires unless renewed
-- ARGV[3] write    id of this call
-- ARGV[4] ttl_ms   of the task, and of the lease's epoch
-- ARGV[5] member   the task's id
-- ARGV[6] max_rows of the updates
-- ARGV[7] log_ttl_ms  of the updates
-- ARGV[8] row_id   update id
-- ARGV[9] row      the update that tells of the start; a 0 at its end becomes the epoch
-- ARGV[10..] fields names and values, in turn
-- Returns
--   {'OK', epoch, fields}  it is running under this epoch; the task's fields and values in turn
--   {'HELD', left_ms}      somebody else runs it
--   {'DENIED', status}     it is in another state
--   {'MISSING'}            no such task
-- Emits the update on channel
-- @include now_ms
-- @include lease_take
-- @include record_write
-- @include log_append
local task, tasks, lease = KEYS[1], KEYS[2], KEYS[3]
local log = { rows = KEYS[4], ids = KEYS[5], topic_rows = KEYS[6], channel = KEYS[7] }
local owner, lease_ms, write, ttl_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local member, row_id, row = ARGV[5], ARGV[8], ARGV[9]
log.topic, log.max_rows, log.ttl_ms = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local fields = { unpack(ARGV, 10) }

local was = redis.call('HMGET', task, 'status', 'write')
local holder = redis.call('HGET', lease, 'owner') or ''
local again = was[2] == write or (was[1] == 'RUNNING' and holder == owner)
if not was[1] then return { 'MISSING' } end
if was[1] ~= 'PENDING' and was[1] ~= 'RUNNING' then return { 'DENIED', was[1] } end
local now = now_ms()
local epoch, left_ms = lease_take(lease, owner, lease_ms, ttl_ms, now)
if not epoch then return { 'HELD', left_ms } end
if not again then
  row = string.gsub(row, ',0%]$', string.format(',%.0f]', epoch))
  log_append(log, row_id, row, now)
  redis.call('HINCRBY', task, 'attempts', 1)
  if was[1] == 'RUNNING' and holder ~= '' then redis.call('HINCRBY', task, 'crashes', 1) end
  record_write(task, { key = tasks, member = member }, write, ttl_ms, fields)
end
return { 'OK', epoch, redis.call('HGETALL', task) }
