-- Decide a pause, once: resolve its token, note it in the journal, and set the task pending if it
-- waits for this pause. That nobody decided in time is a claim like any other, allowed only then.
-- KEYS[1] task     hash: version, write, order, status, finished, attempts,
--   pause_token and the fields given
-- KEYS[2] tasks    zset: task_id -> expiry in us
-- KEYS[3] lease    hash: epoch, claim
-- KEYS[4] rows     stream of the session's updates
-- KEYS[5] ids      hash: its ids
-- KEYS[6] topic_rows  list: the task's index in it
-- KEYS[7] channel  pub/sub
-- KEYS[8] token    hash: state, payload, order, expires, claim, by, at, decision, task
-- KEYS[9] journal  hash: entry -> JSON
-- KEYS[10] pauses  zset: key of a token -> expiry in ms: the session's open pauses
-- ARGV[1] mark     of the lease of a worker that decides on its own task, '' for anybody else
-- ARGV[2] overdue  1 to decide only what nobody decided in time
-- ARGV[3] claim    id of this call
-- ARGV[4] by       who decides
-- ARGV[5] decision JSON
-- ARGV[6] keep_ms  how long the answer is kept for repeated and late calls
-- ARGV[7] entry    of the journal
-- ARGV[8] note     JSON, for the journal
-- ARGV[9] ttl_ms   of the task
-- ARGV[10] member  the task's id
-- ARGV[11] max_rows of the updates
-- ARGV[12] log_ttl_ms  of the updates
-- ARGV[13] resumed_id  update id
-- ARGV[14] resumed the update that tells of the decision and of the task's new state
-- ARGV[15] decided_id  update id
-- ARGV[16] decided the update that tells of the decision only
-- ARGV[17..] fields names and values, in turn
-- Returns
--   {'OK', status, attempts}     this claim has it; the task's state now, and how often it was started
--   {'TAKEN', by, at, decision}  another claim has it, or this one with another decision
--   {'EXPIRED'}                  nobody decided in time
--   {'HELD', left_ms}            it is not overdue yet
--   {'MISSING'}                  no such pause, or its trace is gone
--   {'DENIED', status}           the task is over; the token was left alone
--   {'LOST', epoch}              another claim has the lease; nothing was written
-- Emits one of the updates on channel
-- @include now_ms
-- @include fence
-- @include token_resolve
-- @include record_write
-- @include log_append
local task, tasks, lease, token, journal, pauses = KEYS[1], KEYS[2], KEYS[3], KEYS[8], KEYS[9], KEYS[10]
local log = { rows = KEYS[4], ids = KEYS[5], topic_rows = KEYS[6], channel = KEYS[7] }
local mark, overdue = ARGV[1], ARGV[2] == '1'
local use = { claim = ARGV[3], by = ARGV[4], decision = ARGV[5], keep_ms = tonumber(ARGV[6]), late = overdue }
local entry, note, ttl_ms, member = ARGV[7], ARGV[8], tonumber(ARGV[9]), ARGV[10]
log.topic, log.max_rows, log.ttl_ms = ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12])
local resumed, decided = { ARGV[13], ARGV[14] }, { ARGV[15], ARGV[16] }
local fields = { unpack(ARGV, 17) }

local lost = fence(lease, mark)
if lost then return lost end
local was = redis.call('HMGET', task, 'status', 'finished', 'order', 'pause_token')
local held = redis.call('HMGET', token, 'state', 'order', 'expires')
local status, waits, now = was[1], was[1] == 'PAUSED' and was[4] == token, now_ms()
if held[1] ~= 'resolved' then
  -- The token of an earlier task of this id has another order.
  if not status or (held[1] and held[2] ~= was[3]) then return { 'MISSING' } end
  if was[2] == '1' then return { 'DENIED', status } end
  if overdue and held[1] and tonumber(held[3]) > now then return { 'HELD', tonumber(held[3]) - now } end
end
local reply, won = token_resolve(token, use, now)
-- An open token goes only some time after its deadline: who still waits for it waits in vain.
if reply[1] == 'MISSING' and overdue and (waits or mark ~= '') then reply, won = { 'OK' }, true end
if reply[1] ~= 'OK' then return reply end
if won then
  local told = waits and resumed or decided
  log_append(log, told[1], told[2], now)
  redis.call('HSET', journal, entry, note)
  if redis.call('PTTL', journal) < ttl_ms then redis.call('PEXPIRE', journal, ttl_ms) end
  redis.call('ZREM', pauses, token)
  if waits then
    status = 'PENDING'
    record_write(task, { key = tasks, member = member }, resumed[1], ttl_ms, fields)
  end
end
return { 'OK', status or '', tonumber(redis.call('HGET', task, 'attempts') or 0) }
