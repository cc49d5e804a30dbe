-- Write a child of a running task down, once per entry of that task's journal, and tell of it.
-- KEYS[1] task     hash: version, write, order, status, parent_order and the fields given: the child
-- KEYS[2] tasks    zset: task_id -> expiry in us
-- KEYS[3] rows     stream of the session's updates
-- KEYS[4] ids      hash: its ids
-- KEYS[5] topic_rows  list: the child's index in it
-- KEYS[6] channel  pub/sub
-- KEYS[7] parent   hash: status, order
-- KEYS[8] lease    hash: epoch, claim: the parent's
-- KEYS[9] journal  hash: entry -> JSON, lane:<name> -> JSON, entries: the parent's
-- KEYS[10] children  zset: task_id -> expiry in us: the parent's
-- ARGV[1] mark     of the parent's lease
-- ARGV[2] entry    of the parent's journal
-- ARGV[3] note     JSON, for the parent's journal
-- ARGV[4] before   ms, by when it must be written
-- ARGV[5] write    id of this call
-- ARGV[6] ttl_ms   of the child
-- ARGV[7] index_ttl_ms  of the parent's index
-- ARGV[8] member   the child's id
-- ARGV[9] max_rows of the updates
-- ARGV[10] log_ttl_ms  of the updates
-- ARGV[11] row_id  update id
-- ARGV[12] row     the update that tells of the child
-- ARGV[13] lane    entry of the parent's journal, '' for none
-- ARGV[14] state   JSON: where the lane stands then
-- ARGV[15..] fields names and values, in turn
-- Returns
--   {'OK', version, entries}  it is written; how many entries the parent's journal has
--   {'STALE', note}     it was before: what the journal holds; its place in the index is renewed
--   {'EXPIRED'}         it is too late; nothing was written
--   {'DENIED', status}  the parent does not run; nothing was written
--   {'LOST', epoch}     another claim has the parent's lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
-- Emits the update on channel
-- @include now_ms
-- @include now_us
-- @include journal_fence
-- @include journal_count
-- @include record_write
-- @include log_append
local task, tasks, parent, lease, journal, children = KEYS[1], KEYS[2], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local log = { rows = KEYS[3], ids = KEYS[4], topic_rows = KEYS[5], channel = KEYS[6] }
local mark, entry, note, before, write = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local ttl_ms, index_ttl_ms, member = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
log.topic, log.max_rows, log.ttl_ms = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
local row_id, row, lane, state = ARGV[11], ARGV[12], ARGV[13], ARGV[14]
local fields = { unpack(ARGV, 15) }

local lost = journal_fence(lease, mark, journal)
if lost then return lost end
local now, noted, entries = now_ms(), unpack(redis.call('HMGET', journal, entry, 'entries'))
local is_new = not noted
if is_new then
  local is = redis.call('HMGET', parent, 'status', 'order')
  if is[1] ~= 'RUNNING' then return { 'DENIED', is[1] or '' } end
  if now > before then return { 'EXPIRED' } end
  -- It is this task's child, and not that of a later task of the same id.
  fields[#fields + 1] = 'parent_order'
  fields[#fields + 1] = is[2] or ''
end
-- A run that comes here again keeps the index alive for as long as the next pause may last.
-- By the microsecond: children are listed in the order in which they were spawned.
redis.call('ZADD', children, string.format('%.0f', now_us() + index_ttl_ms * 1000), member)
redis.call('PEXPIRE', children, index_ttl_ms)
local was = redis.call('HMGET', task, 'version', 'write')
if was[2] == write then return { 'OK', tonumber(was[1]), tonumber(entries or 0) } end
if not is_new then return { 'STALE', noted } end
redis.call('HSET', journal, entry, note)
entries = journal_count(journal, lane, state)
redis.call('PEXPIREAT', journal, redis.call('PEXPIRETIME', parent))
log_append(log, row_id, row, now)
return { 'OK', record_write(task, { key = tasks, member = member }, write, ttl_ms, fields), entries }
