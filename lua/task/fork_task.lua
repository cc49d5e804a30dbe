-- Write a new pending task down with a part of another task's journal, unless there is one of this id. What an
-- earlier task of the same id recorded, received and spawned is not this one's. A repetition finds the task.
-- KEYS task                hash: version, write, order and the fields given, inbox
-- KEYS tasks               zset: task_id -> expiry in us
-- KEYS journal             hash: entry -> JSON
-- KEYS lease               hash: epoch; there if an earlier task of this id ran
-- KEYS steering.ids        hash: ids of the session's steering
-- KEYS updates.ids         hash: ids of the session's updates; its index is there if an earlier task of this id
--   published any
-- KEYS children            zset: what an earlier task of this id has spawned
-- KEYS source.task         hash: order: the other task
-- KEYS source.journal      hash: entry -> JSON: the other task's
-- KEYS turn                zset: task_id -> its place in the line, in ms; another key without one
-- ARGV write               id of this call
-- ARGV ttl_ms              int: milliseconds
-- ARGV task_id             the task's id
-- ARGV before              int: ms, by when it must be written
-- ARGV order               of the other task; '' if the other task is not here: then nothing is copied
-- ARGV in_turn             flag: its session's tasks run in turn
-- ARGV earlier_ms          int: what its priority is worth
-- ARGV copied..            entries that are copied
-- ARGV made..              entries that are given, names and values in turn
-- ARGV fields..            names and values, in turn
-- Returns
--   {'OK', version}     it is written
--   {'STALE', version}  there is one; nothing was written
--   {'EXPIRED'}         it is too late; nothing was written
--   {'MISSING'}         the other task is gone, or a later one of its id is there; nothing was written
-- @include now_ms
-- @include log_head
-- @include topic_index
-- @include record_write
-- @include turn_list

local was = redis.call('HMGET', task, 'version', 'write')
if was[1] and was[2] ~= write then return { 'STALE', tonumber(was[1]) } end
if was[1] then return { 'OK', tonumber(was[1]) } end
if order ~= '' and redis.call('HGET', source.task, 'order') ~= order then return { 'MISSING' } end
if now_ms() > before then return { 'EXPIRED' } end
if redis.call('EXISTS', lease) + redis.call('HEXISTS', updates.ids, topic_field(task_id)) > 0 then
  local steering_head = log_head(redis.call('HGET', steering.ids, ''))
  fields[#fields + 1] = 'inbox'
  fields[#fields + 1] = string.format('%.0f-%.0f', steering_head.last, steering_head.last_ms)
end
redis.call('DEL', journal, children)
for _, entry in ipairs(copied) do
  local value = redis.call('HGET', source.journal, entry)
  if value then redis.call('HSET', journal, entry, value) end
end
for first = 1, #made, 1000 do
  redis.call('HSET', journal, unpack(made, first, math.min(first + 999, #made)))
end
redis.call('PEXPIRE', journal, ttl_ms)
if in_turn then turn_put(turn, task_id, now_ms() - earlier_ms, 2 * ttl_ms) end
return { 'OK', record_write(task, { key = tasks, member = task_id }, write, ttl_ms, fields) }
