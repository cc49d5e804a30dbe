-- Decide on a patch that waits, bring it into the context if it is approved, and say so. A repetition
-- finds its own decision.
-- KEYS[1] context  hash: version, write, order, number, hash; =<task> -> place and result
-- KEYS[2] patch    hash: state, payload, expires, claim, by, at, decision, task, resolver
-- KEYS[3] patches  zset: patch_id -> expiry in us: those that wait
-- KEYS[4] rows     stream of the session's updates
-- KEYS[5] ids      hash: its ids
-- KEYS[6] topic_rows  list: the task's index in it
-- KEYS[7] channel  pub/sub
-- ARGV[1] claim    who may repeat it, and whether it approves
-- ARGV[2] by       who decides
-- ARGV[3] decision JSON
-- ARGV[4] keep_ms  how long the answer is kept for repeated and late calls
-- ARGV[5] patch_id text
-- ARGV[6] task     the task's id
-- ARGV[7] number   of the context that was read
-- ARGV[8] hash     of the context that was read
-- ARGV[9] result   what it brings into the context; '' to reject it
-- ARGV[10] ttl_ms  of the context
-- ARGV[11] max_rows of the updates
-- ARGV[12] log_ttl_ms  of the updates
-- ARGV[13] call    id of this call
-- ARGV[14..] rows_in  update id and row, in turn
-- Returns
--   {'OK', won, decision, version}  this claim's decision stands; won is 0 if another call of it was first
--   {'TAKEN', by, at, decision}     another claim has decided
--   {'EXPIRED'}                     nobody decided in time
--   {'MISSING'}                     no such patch, or its trace is gone
--   {'STALE', number}               the context has another number or hash; nothing was written
-- Emits the updates on channel
-- @include now_ms
-- @include context_basis
-- @include context_result
-- @include record_write
-- @include token_resolve
-- @include log_append
local context, patch, patches = KEYS[1], KEYS[2], KEYS[3]
local log = { rows = KEYS[4], ids = KEYS[5], topic_rows = KEYS[6], channel = KEYS[7] }
local use = { claim = ARGV[1], by = ARGV[2], decision = ARGV[3], keep_ms = tonumber(ARGV[4]) }
local patch_id = ARGV[5]
local task, number, hash, result, ttl_ms = ARGV[6], ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10])
log.topic, log.max_rows, log.ttl_ms = ARGV[6], tonumber(ARGV[11]), tonumber(ARGV[12])
local call, rows_in = ARGV[13], { unpack(ARGV, 14) }

local was = redis.call('HMGET', patch, 'state', 'claim', 'decision')
local open = was[1] == 'open'
-- A repeated claim may find the context elsewhere than at first: its name says what it decides.
if was[2] == use.claim then use.decision = was[3] end
local stale = open and result ~= '' and context_basis(context, number, hash)
if stale then return stale end
local now = now_ms()
local reply, won = token_resolve(patch, use, now)
if reply[1] ~= 'OK' then return reply end
if won then
  for i = 1, #rows_in, 2 do log_append(log, rows_in[i], rows_in[i + 1], now) end
  redis.call('ZREM', patches, patch_id)
  redis.call('HSET', patch, 'resolver', call)
end
if won and result ~= '' then
  record_write(context, { key = '' }, string.format('patch %s %.0f', patch_id, now), ttl_ms, {})
  context_result(context, task, result)
end
local version = tonumber(redis.call('HGET', context, 'version') or 0)
local is = redis.call('HMGET', patch, 'decision', 'resolver')
return { 'OK', is[2] == call and 1 or 0, is[1], version }
