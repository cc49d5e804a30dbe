-- Resolve a paused task's token and set the task pending again, in one step.
-- KEYS[1] task     hash: version, write, order, status and the fields given
-- KEYS[2] tasks    zset: task_id -> expiry in us
-- KEYS[3] lease    hash: epoch
-- KEYS[4] rows     stream of the session's updates
-- KEYS[5] ids      hash: its ids
-- KEYS[6] topic_rows  list: the task's index in it
-- KEYS[7] channel  pub/sub
-- KEYS[8] token    hash: state, payload, expires, claim, by, at, decision, task
-- KEYS[9] journal  hash: entry -> JSON
-- ARGV[1] claim    id of this call
-- ARGV[2] by       who decides
-- ARGV[3] decision JSON
-- ARGV[4] keep_ms  how long the answer is kept for repeated and late calls
-- ARGV[5] entry    of the journal
-- ARGV[6] ttl_ms   of the task
-- ARGV[7] member   the task's id
-- ARGV[8] max_rows of the updates
-- ARGV[9] log_ttl_ms  of the updates
-- ARGV[10] row_id  update id
-- ARGV[11] row     the update that tells of it
-- ARGV[12..] fields names and values, in turn
-- Returns
--   {'OK', payload, epoch}       this claim has it; the task waits for a worker
--   {'TAKEN', by, at, decision}  another claim has it
--   {'EXPIRED'}                  nobody took it in time
--   {'MISSING'}                  no such token, or its trace is gone
--   {'DENIED', status}           the task is not paused; the token was left alone
-- Emits the update on channel
-- @include now_ms
-- @include token_resolve
-- @include record_write
-- @include log_write
local task, tasks, lease, token, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[8], KEYS[9]
local log = { rows = KEYS[4], ids = KEYS[5], topic_rows = KEYS[6], channel = KEYS[7] }
local claim, by, decision, keep_ms, entry = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local ttl_ms, member, row_id, row = tonumber(ARGV[6]), ARGV[7], ARGV[10], ARGV[11]
log.topic, log.max_rows, log.ttl_ms = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])
local fields = { unpack(ARGV, 12) }

local status = redis.call('HGET', task, 'status') or ''
local open = redis.call('HGET', token, 'state') == 'open'
if open and status ~= 'PAUSED' then return { 'DENIED', status } end
local now = now_ms()
local reply, won = token_resolve(token, claim, by, decision, keep_ms, now)
if reply[1] ~= 'OK' then return reply end
if won then
  log_write(log, { row_id, row }, now)
  redis.call('HSET', journal, entry, decision)
  redis.call('PEXPIRE', journal, ttl_ms)
  record_write(task, { key = tasks, member = member }, claim, ttl_ms, fields)
end
return { 'OK', reply[2], tonumber(redis.call('HGET', lease, 'epoch') or 0) }
