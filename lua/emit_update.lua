-- Append an update of a running task to its session's log, and note in the journal that it is there:
-- a replay asks the journal, which remembers for as long as the task lives, and not the log.
-- KEYS[1] rows     stream of the session's updates
-- KEYS[2] ids      hash: its ids
-- KEYS[3] topic_rows  list: the task's index in it
-- KEYS[4] channel  pub/sub
-- KEYS[5] lease    hash: epoch, claim
-- KEYS[6] journal  hash: lane:<name> -> JSON, entries
-- KEYS[7] task     hash: the journal lives as long as it
-- ARGV[1] mark     of the worker's lease
-- ARGV[2] topic    the task's id
-- ARGV[3] max_rows of the updates
-- ARGV[4] log_ttl_ms  of the updates
-- ARGV[5] lane     entry of the journal
-- ARGV[6] state    JSON: where the lane stands then
-- ARGV[7] row_id   update id
-- ARGV[8] row      the update
-- Returns
--   {'OK', entries}       it is in the log; how many entries the journal has
--   {'LOST', epoch}       another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
--   {'MISSING'}           no such task
-- Emits the update on channel
-- @include now_ms
-- @include journal_fence
-- @include journal_count
-- @include log_append
-- @each
local lease, journal, task = KEYS[5], KEYS[6], KEYS[7]
local log = { rows = KEYS[1], ids = KEYS[2], topic_rows = KEYS[3], channel = KEYS[4] }
local mark, lane, state, row_id, row = ARGV[1], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
log.topic, log.max_rows, log.ttl_ms = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local lost = journal_fence(lease, mark, journal)
if lost then return lost end
local ends = redis.call('PEXPIRETIME', task)
if ends < 0 then return { 'MISSING' } end
local _, new = log_append(log, row_id, row, now_ms())
if new == 0 then return { 'OK', tonumber(redis.call('HGET', journal, 'entries') or 0) } end
local entries = journal_count(journal, lane, state)
redis.call('PEXPIREAT', journal, ends)
return { 'OK', entries }
