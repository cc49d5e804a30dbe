-- Change an A2A task once per call: add a message or an artifact, or set fields; and tell it.
-- KEYS[1] task     hash: updated and the fields given
-- KEYS[2] tasks    zset: task_id -> updated in us
-- KEYS[3] history  list: messages
-- KEYS[4] artifacts  list: what was added, in order
-- KEYS[5] push     hash: config_id -> config
-- KEYS[6] rows     stream: id, topic, row; entry <n>-<ms>
-- KEYS[7] ids      hash: id of a call -> n; '' -> head
-- KEYS[8] channel  pub/sub: as append_log tells it
-- ARGV[1] write    id of this call
-- ARGV[2] ttl_ms   milliseconds
-- ARGV[3] member   the task's id
-- ARGV[4] max_rows of the log, 0 for no limit
-- ARGV[5] row      what is told
-- ARGV[6] place    history or artifacts, '' for none
-- ARGV[7] item     what is added there
-- ARGV[8..] fields names and values, in turn
-- Returns
--   {'OK', n}    its number in the log
--   {'MISSING'}  no such task
-- Emits one message on channel
-- @include now_ms
-- @include log_append
-- @include a2a_touch
local task, tasks, history, artifacts, push, rows, ids, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local write, ttl_ms, member, max_rows, row, place, item = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]
local fields = { unpack(ARGV, 8) }

local known = redis.call('HGET', ids, write)
if known then return { 'OK', tonumber(known) } end
if redis.call('EXISTS', task) == 0 then return { 'MISSING' } end
local log = { rows = rows, ids = ids, topic_rows = rows, channel = channel, topic = '', max_rows = max_rows, ttl_ms = ttl_ms }
local n = log_append(log, write, row, now_ms())
if place ~= '' then redis.call('RPUSH', place == 'history' and history or artifacts, item) end
if #fields > 0 then redis.call('HSET', task, unpack(fields)) end
local keys = { task = task, tasks = tasks, history = history, artifacts = artifacts, push = push }
a2a_touch(keys, member, ttl_ms)
return { 'OK', n }
