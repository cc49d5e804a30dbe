-- Decide on a patch that waits, bring it into the context if it is approved, and say so. A repetition
-- finds its own decision.
-- KEYS context                  hash: version, write, order, number, hash; =<task> -> place and result
-- KEYS patch                    hash: state, payload, expires, claim, actor, at, decision, task, resolver
-- KEYS patches                  zset: patch_id -> expiry in us: those that wait
-- KEYS kept                     zset: patch_id -> expiry in us: all that are kept
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- ARGV announcement.channel     channel
-- ARGV claim                    who may repeat it, and whether it approves
-- ARGV actor                    who decides
-- ARGV decision                 JSON
-- ARGV keep_ms                  int: how long the answer is kept for repeated and late calls
-- ARGV patch_id                 text
-- ARGV task_id                  the task's id
-- ARGV basis                    number and, after a space, hash of the context that was read
-- ARGV result                   what it brings into the context; '' to reject it
-- ARGV ttl_ms                   int: of the context
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV call                     id of this call
-- ARGV announcement.updates..   update id and row, in turn
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
-- @include patch_keep
-- @include record_write
-- @include token_resolve
-- @include announce

local use = { claim = claim, actor = actor, decision = decision, keep_ms = keep_ms }
local was = redis.call('HMGET', patch, 'state', 'claim', 'decision')
local open = was[1] == 'open'
-- A repeated claim may find the context elsewhere than at first: its name says what it decides.
if was[2] == use.claim then use.decision = was[3] end
local stale = open and result ~= '' and context_basis(context, basis)
if stale then return stale end
local now = now_ms()
function use.say() announce_all(announcement, task_id, now) end
local reply, won = token_resolve(patch, use, now)
if reply[1] ~= 'OK' then return reply end
if won then
  redis.call('ZREM', patches, patch_id)
  patch_keep(kept, patch_id, keep_ms, now)
  redis.call('HSET', patch, 'resolver', call)
end
if won and result ~= '' then
  record_write(context, { key = '' }, 'patch ' .. patch_id .. string.format(' %.0f', now), ttl_ms, {})
  context_result(context, task_id, result)
end
local version = tonumber(redis.call('HGET', context, 'version') or 0)
local is = redis.call('HMGET', patch, 'decision', 'resolver')
return { 'OK', is[2] == call and 1 or 0, is[1], version }
