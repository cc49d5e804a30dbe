-- Record an event of a task once per id: append and tell it, and move the task to the state that it
-- says. A task that has ended takes no more.
-- KEYS[1] task     hash: state, completed
-- KEYS[2] active   zset: task_id -> expiry in ms
-- KEYS[3] completed  zset: task_id -> its end in us
-- KEYS[4] kept     zset: task_id of a completed one -> expiry in ms
-- KEYS[5] rows     stream: id, topic, row; entry <n>-<ms>
-- KEYS[6] ids      hash: event id -> n; '' -> head
-- KEYS[7] channel  pub/sub: as append_log tells it
-- ARGV[1] event_id entry id
-- ARGV[2] member   the task's id
-- ARGV[3] state    that the event says, '' for none
-- ARGV[4] ends     1 if no event can follow
-- ARGV[5] row      what is recorded
-- ARGV[6] max_rows of the log, 0 for no limit
-- ARGV[7] active_ms  how long an active task lives
-- ARGV[8] kept_ms  how long a completed one does
-- Returns
--   {'OK', entry}       its place in the log
--   {'TAKEN', entry, row}  what was recorded under this id before; nothing was written
--   {'DENIED', state}   the task ended before, in this state; nothing was written
--   {'MISSING'}         no such task
-- Emits one message on channel
-- @include now_us
-- @include log_append
-- @include keep_state
-- @each
local task, active, completed, kept, rows, ids, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local event_id, member, state, ends, row = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local max_rows, active_ms, kept_ms = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

local was = redis.call('HMGET', task, 'state', 'completed')
if not was[1] then return { 'MISSING' } end
local known = redis.call('HGET', ids, event_id)
if known then
  local entry = redis.call('XRANGE', rows, known, known)[1]
  return { 'TAKEN', entry and entry[1] or known .. '-0', entry and entry[2][6] or row }
end
if was[2] then return { 'DENIED', was[1] } end
local moment = now_us()
local now, ttl_ms = math.floor(moment / 1000), ends == '1' and kept_ms or active_ms
-- No row is too old: how long the log lives is for keep_state to say.
local log = { rows = rows, ids = ids, topic_rows = rows, channel = channel, topic = '', max_rows = max_rows, ttl_ms = ttl_ms, keeps_old = true }
local n, _, at = log_append(log, event_id, row, now)
if state ~= '' then redis.call('HSET', task, 'state', state) end
local ended = ends == '1' and string.format('%.0f', moment)
if ended then redis.call('HSET', task, 'completed', ended) end
local keys = { task = task, rows = rows, ids = ids, active = active, completed = completed, kept = kept }
keep_state(keys, member, now, ttl_ms, ended)
return { 'OK', string.format('%.0f-', n) .. at }
