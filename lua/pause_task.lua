-- Pause a running task: open its token, note it in the journal, free the worker, tell the session.
-- KEYS[1] task     hash: version, write, order, status and the fields given
-- KEYS[2] tasks    zset: task_id -> expiry in us
-- KEYS[3] lease    hash: owner, epoch, expires
-- KEYS[4] rows     stream of the session's updates
-- KEYS[5] ids      hash: its ids
-- KEYS[6] topic_rows  list: the task's index in it
-- KEYS[7] channel  pub/sub
-- KEYS[8] token    hash: state, payload, mark, task, expires
-- KEYS[9] journal  hash: entry -> JSON
-- ARGV[1] epoch    of the worker's lease
-- ARGV[2] write    id of this call
-- ARGV[3] ttl_ms   of the task
-- ARGV[4] member   the task's id
-- ARGV[5] max_rows of the updates
-- ARGV[6] log_ttl_ms  of the updates
-- ARGV[7] payload  of the token
-- ARGV[8] mark     digest of the payload
-- ARGV[9] owner_of_token  JSON: task id, journal entry
-- ARGV[10] token_ttl_ms   until it expires
-- ARGV[11] keep_ms how long its trace is kept afterwards
-- ARGV[12] entry   of the journal
-- ARGV[13] note    JSON, for the journal
-- ARGV[14] row_count  how many updates follow, as id and row in turn; then the fields
-- ARGV[15..] rest  updates, then field names and values
-- Returns
--   {'OK', version}      it is paused
--   {'DENIED', status}   it is in another state; nothing was written
--   {'LOST', epoch}      the lease is at a later epoch; nothing was written
--   {'TAKEN', by, at, decision}  the token was used before; nothing was written
-- Emits the updates on channel
-- @include now_ms
-- @include fence
-- @include token_open
-- @include record_write
-- @include log_write
local task, tasks, lease, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[9]
local log = { rows = KEYS[4], ids = KEYS[5], topic_rows = KEYS[6], channel = KEYS[7] }
local epoch, write, ttl_ms, member = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
log.topic, log.max_rows, log.ttl_ms = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local token = { key = KEYS[8], payload = ARGV[7], mark = ARGV[8], task = ARGV[9],
  ttl_ms = tonumber(ARGV[10]), keep_ms = tonumber(ARGV[11]) }
local entry, note, row_count = ARGV[12], ARGV[13], tonumber(ARGV[14])
local rest = { unpack(ARGV, 15) }

local was = redis.call('HMGET', task, 'status', 'write', 'version')
-- A token is made for one pause: that it is there says that this call is a repetition.
if was[2] == write or redis.call('HGET', token.key, 'task') == token.task then return { 'OK', tonumber(was[3] or 0) } end
local lost = fence(lease, epoch)
if lost then return lost end
if was[1] ~= 'RUNNING' then return { 'DENIED', was[1] or '' } end
local now = now_ms()
local used = token_open(token, now)
if used then return used end
log_write(log, { unpack(rest, 1, 2 * row_count) }, now)
redis.call('HSET', journal, entry, note)
redis.call('PEXPIRE', journal, ttl_ms)
local version = record_write(task, { key = tasks, member = member }, write, ttl_ms, { unpack(rest, 2 * row_count + 1) })
redis.call('HSET', lease, 'owner', '', 'expires', 0)
return { 'OK', version }
