-- Write a new pending task down, unless there is one of this id. What an earlier task of the same
-- id recorded, received and spawned is not this one's. A repetition finds the task.
-- KEYS[1] task     hash: version, write, order and the fields given, inbox
-- KEYS[2] tasks    zset: task_id -> expiry in us
-- KEYS[3] journal  hash: entry -> JSON
-- KEYS[4] steering_ids  hash: ids of the session's steering
-- KEYS[5] lease    hash: epoch; there if an earlier task of this id ran
-- KEYS[6] updates_topic  list: n of the task's updates; there if an earlier task of this id told any
-- KEYS[7] children  zset: what an earlier task of this id has spawned
-- ARGV[1] write    id of this call
-- ARGV[2] ttl_ms   milliseconds
-- ARGV[3] member   the task's id
-- ARGV[4] before   ms, by when it must be written; '' for any time
-- ARGV[5..] fields names and values, in turn
-- Returns
--   {'OK', version}     it is written
--   {'STALE', version}  there is one; nothing was written
--   {'EXPIRED'}         it is too late; nothing was written
-- @include now_ms
-- @include log_head
-- @include record_write
local task, tasks, journal, steering_ids = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lease, updates_topic, children = KEYS[5], KEYS[6], KEYS[7]
local write, ttl_ms, member, before = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local fields = { unpack(ARGV, 5) }

local was = redis.call('HMGET', task, 'version', 'write')
if was[1] and was[2] ~= write then return { 'STALE', tonumber(was[1]) } end
if was[1] then return { 'OK', tonumber(was[1]) } end
-- A sweeper that twice finds no task takes its entry out of the watch list.
if before and now_ms() > before then return { 'EXPIRED' } end
-- Of the first task of an id, what was said of it before it was made counts too.
if redis.call('EXISTS', lease, updates_topic) > 0 then
  local told = log_head(redis.call('HGET', steering_ids, ''))
  fields[#fields + 1] = 'inbox'
  fields[#fields + 1] = string.format('%.0f-%.0f', told.last, told.last_ms)
end
redis.call('DEL', journal, children)
return { 'OK', record_write(task, { key = tasks, member = member }, write, ttl_ms, fields) }
