-- Register a task as working, unless there is one of its id; tell what there is then. A
-- repetition finds its own.
-- KEYS[1] task     hash: write, context, stream, state, created
-- KEYS[2] active   zset: task_id -> expiry in ms
-- KEYS[3] completed  zset: task_id -> its end in us
-- KEYS[4] kept     zset: task_id of a completed one -> expiry in ms
-- KEYS[5] rows     stream: events; of an earlier life, until now
-- KEYS[6] ids      hash: event id -> n; '' -> head
-- ARGV[1] write    id of this call
-- ARGV[2] ttl_ms   milliseconds
-- ARGV[3] member   the task's id
-- ARGV[4] context  the context's id
-- ARGV[5] stream   the stream's id
-- ARGV[6] state    that it begins in
-- Returns
--   {'OK', fields, last, last_ms}     it is registered, by this call
--   {'TAKEN', fields, last, last_ms}  there is one; nothing was written
-- @include now_us
-- @include log_head
-- @include keep_state
local task, active, completed, kept, rows, ids = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local write, ttl_ms, member = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local context, stream, state = ARGV[4], ARGV[5], ARGV[6]

local by = redis.call('HGET', task, 'write')
if by and by ~= write then
  local head = log_head(redis.call('HGET', ids, ''))
  return { 'TAKEN', redis.call('HGETALL', task), head.last, head.last_ms }
end
if not by then
  local created = string.format('%.0f', now_us())
  redis.call('HSET', task, 'write', write, 'context', context, 'stream', stream, 'state', state, 'created', created)
  redis.call('UNLINK', rows, ids)
  redis.call('ZREM', completed, member)
  redis.call('ZREM', kept, member)
  local keys = { task = task, rows = rows, ids = ids, active = active, completed = completed, kept = kept }
  keep_state(keys, member, math.floor(created / 1000), ttl_ms)
end
local head = log_head(redis.call('HGET', ids, ''))
return { 'OK', redis.call('HGETALL', task), head.last, head.last_ms }
