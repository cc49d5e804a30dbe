-- Bring a patch into a session's context, or keep it for a decision, once per patch, and say so.
-- KEYS[1] context  hash: version, write, order, number, hash; =<task> -> place and result
-- KEYS[2] patch    hash: state, payload, expires, claim, by, at, decision, task, order, call
-- KEYS[3] patches  zset: patch_id -> expiry in us: those that wait
-- KEYS[4] rows     stream of the session's updates
-- KEYS[5] ids      hash: its ids
-- KEYS[6] topic_rows  list: the task's index in it
-- KEYS[7] channel  pub/sub
-- ARGV[1] number   of the context that was read
-- ARGV[2] hash     of the context that was read
-- ARGV[3] patch_id text
-- ARGV[4] task     the task's id
-- ARGV[5] payload  the patch, to be kept for a decision; '' to apply it
-- ARGV[6] result   what it brings into the context; '' to keep it
-- ARGV[7] decision JSON: what became of it
-- ARGV[8] by       who applies it
-- ARGV[9] wait_ms  how long it waits for a decision
-- ARGV[10] keep_ms how long what became of it is kept
-- ARGV[11] limit   how many may wait, 0 for any number
-- ARGV[12] ttl_ms  of the context
-- ARGV[13] max_rows of the updates
-- ARGV[14] log_ttl_ms  of the updates
-- ARGV[15] call    id of this call
-- ARGV[16..] rows_in  update id and row, in turn
-- Returns
--   {'OK', new, decision, version}  new is 0 if another call's patch was there; the context's version
--   {'STALE', number}               the context has another number or hash; nothing was written
--   {'DENIED', waiting}             as many wait as may; nothing was written
-- Emits the updates on channel
-- @include now_ms
-- @include now_us
-- @include context_basis
-- @include context_result
-- @include record_write
-- @include log_append
local context, patch, patches = KEYS[1], KEYS[2], KEYS[3]
local log = { rows = KEYS[4], ids = KEYS[5], topic_rows = KEYS[6], channel = KEYS[7] }
local number, hash, patch_id, task, payload = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local result, decision, by, wait_ms = ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9])
local keep_ms, limit, ttl_ms = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
log.topic, log.max_rows, log.ttl_ms = ARGV[4], tonumber(ARGV[13]), tonumber(ARGV[14])
local call, rows_in = ARGV[15], { unpack(ARGV, 16) }

local known, by_call = unpack(redis.call('HMGET', patch, 'decision', 'call'))
local version = tonumber(redis.call('HGET', context, 'version') or 0)
if known then return { 'OK', by_call == call and 1 or 0, known, version } end
local stale = context_basis(context, number, hash)
if stale then return stale end
local now = now_ms()
if result == '' and limit > 0 then
  local waiting = redis.call('ZCOUNT', patches, string.format('%.0f', now * 1000), '+inf')
  if waiting >= limit then return { 'DENIED', waiting } end
end
for i = 1, #rows_in, 2 do log_append(log, rows_in[i], rows_in[i + 1], now) end
if result == '' then
  -- A token as token_resolve knows it: open from the start, and there only once.
  redis.call('HSET', patch, 'state', 'open', 'payload', payload, 'task', task, 'decision', decision,
    'expires', string.format('%.0f', now + wait_ms))
  redis.call('PEXPIRE', patch, string.format('%.0f', wait_ms + keep_ms))
  redis.call('ZADD', patches, string.format('%.0f', (now + wait_ms) * 1000), patch_id)
  redis.call('ZREMRANGEBYSCORE', patches, '-inf', string.format('(%.0f', now * 1000))
  if redis.call('PTTL', patches) < wait_ms then redis.call('PEXPIRE', patches, wait_ms) end
else
  redis.call('HSET', patch, 'state', 'resolved', 'claim', '', 'by', by, 'task', task,
    'at', string.format('%.0f', now), 'decision', decision)
  redis.call('PEXPIRE', patch, keep_ms)
  version = record_write(context, { key = '' }, string.format('patch %s %.0f', patch_id, now), ttl_ms, {})
  context_result(context, task, result)
end
redis.call('HSET', patch, 'call', call, 'order', string.format('%.0f', now_us()))
return { 'OK', 1, decision, version }
