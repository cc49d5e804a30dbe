-- Have a running task wait for one of its open pauses, and free its worker; not if that is decided.
-- KEYS[1] task     hash: version, write, order, status, pause_entry, pause_token, pause_write and the
--   fields given
-- KEYS[2] tasks    zset: task_id -> expiry in us
-- KEYS[3] lease    hash: owner, claim, epoch, expires
-- KEYS[4] rows     stream of the session's updates
-- KEYS[5] ids      hash: its ids
-- KEYS[6] topic_rows  list: the task's index in it
-- KEYS[7] channel  pub/sub
-- KEYS[8] token    hash: state, expires, by, at, decision
-- KEYS[9] journal  hash: entry -> JSON, entries; lives as long as the task
-- ARGV[1] mark     of the worker's lease
-- ARGV[2] entry    of the journal
-- ARGV[3] write    id of this call
-- ARGV[4] ttl_ms   of the task, after the pause's deadline
-- ARGV[5] member   the task's id
-- ARGV[6] max_rows of the updates
-- ARGV[7] log_ttl_ms  of the updates
-- ARGV[8] row_id   update id
-- ARGV[9] row      the update that tells of it
-- ARGV[10..] fields names and values, in turn
-- Returns
--   {'OK', version}              it is paused
--   {'TAKEN', by, at, decision}  the pause is decided; nothing was written
--   {'EXPIRED'}                  nobody decided it in time; nothing was written
--   {'MISSING'}                  there is no trace of its token; nothing was written
--   {'DENIED', status}           the task does not run; nothing was written
--   {'LOST', epoch}              another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
-- Emits the update on channel
-- @include now_ms
-- @include journal_fence
-- @include record_write
-- @include log_append
local task, tasks, lease, token, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[8], KEYS[9]
local log = { rows = KEYS[4], ids = KEYS[5], topic_rows = KEYS[6], channel = KEYS[7] }
local mark, entry, write, ttl_ms, member = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
log.topic, log.max_rows, log.ttl_ms = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local row_id, row = ARGV[8], ARGV[9]
local fields = { unpack(ARGV, 10) }

local was = redis.call('HMGET', task, 'status', 'pause_write', 'version')
-- A repetition may come after the decision: only the next pause writes this field again.
if was[2] == write then return { 'OK', tonumber(was[3]) } end
local lost = journal_fence(lease, mark, journal)
if lost then return lost end
if was[1] ~= 'RUNNING' then return { 'DENIED', was[1] or '' } end
local held = redis.call('HMGET', token, 'state', 'expires', 'by', 'at', 'decision')
if not held[1] then return { 'MISSING' } end
if held[1] == 'resolved' then return { 'TAKEN', held[3], tonumber(held[4]), held[5] } end
local now = now_ms()
local left_ms = tonumber(held[2]) - now
if left_ms <= 0 then return { 'EXPIRED' } end
log_append(log, row_id, row, now)
for _, field in ipairs({ 'pause_entry', entry, 'pause_token', token, 'pause_write', write }) do
  fields[#fields + 1] = field
end
local life_ms = left_ms + ttl_ms
local version = record_write(task, { key = tasks, member = member }, write, life_ms, fields)
redis.call('PEXPIRE', journal, life_ms)
redis.call('HSET', lease, 'owner', '', 'expires', 0)
redis.call('PEXPIRE', lease, life_ms)
return { 'OK', version }
