-- Bring a patch into a session's context, or keep it for a decision, once per patch, and say so.
-- KEYS context                  hash: version, write, order, number, hash; =<task> -> place and result
-- KEYS patch                    hash: state, payload, expires, claim, actor, at, decision, task, order, call
-- KEYS patches                  zset: patch_id -> expiry in us: those that wait
-- KEYS kept                     zset: patch_id -> expiry in us: all that are kept
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- ARGV announcement.channel     channel
-- ARGV basis                    number and, after a space, hash of the context that was read
-- ARGV patch_id                 text
-- ARGV task_id                  the task's id
-- ARGV payload                  the patch, to be kept for a decision; '' to apply it
-- ARGV result                   what it brings into the context; '' to keep it
-- ARGV decision                 JSON: what became of it
-- ARGV actor                    who applies it
-- ARGV wait_ms                  int: how long it waits for a decision
-- ARGV keep_ms                  int: how long what became of it is kept
-- ARGV limit                    int: how many may wait, 0 for any number
-- ARGV ttl_ms                   int: of the context
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV call                     id of this call
-- ARGV announcement.updates..   update id and row, in turn
-- Returns
--   {'OK', new, decision, version}  new is 0 if another call's patch was there; the context's version
--   {'STALE', number}               the context has another number or hash; nothing was written
--   {'DENIED', waiting}             as many wait as may; nothing was written
-- Emits the updates on channel
-- @include now_ms
-- @include now_us
-- @include context_basis
-- @include context_result
-- @include patch_keep
-- @include record_write
-- @include announce

local known, by_call = unpack(redis.call('HMGET', patch, 'decision', 'call'))
local version = tonumber(redis.call('HGET', context, 'version') or 0)
if known then return { 'OK', by_call == call and 1 or 0, known, version } end
local stale = context_basis(context, basis)
if stale then return stale end
local now = now_ms()
if result == '' and limit > 0 then
  local waiting = redis.call('ZCOUNT', patches, string.format('%.0f', now * 1000), '+inf')
  if waiting >= limit then return { 'DENIED', waiting } end
end
announce_all(announcement, task_id, now)
if result == '' then
  -- A token as token_resolve knows it: open from the start, and there only once.
  redis.call('HSET', patch, 'state', 'open', 'payload', payload, 'task', task_id, 'decision', decision,
    'expires', string.format('%.0f', now + wait_ms))
  redis.call('PEXPIRE', patch, string.format('%.0f', wait_ms + keep_ms))
  redis.call('ZADD', patches, string.format('%.0f', (now + wait_ms) * 1000), patch_id)
  redis.call('ZREMRANGEBYSCORE', patches, '-inf', string.format('(%.0f', now * 1000))
  lives(patches, wait_ms)
else
  redis.call('HSET', patch, 'state', 'resolved', 'claim', '', 'actor', actor, 'task', task_id,
    'at', string.format('%.0f', now), 'decision', decision)
  redis.call('PEXPIRE', patch, keep_ms)
  version = record_write(context, { key = '' }, 'patch ' .. patch_id .. string.format(' %.0f', now), ttl_ms, {})
  context_result(context, task_id, result)
end
patch_keep(kept, patch_id, result == '' and wait_ms + keep_ms or keep_ms, now)
redis.call('HSET', patch, 'call', call, 'order', string.format('%.0f', now_us()))
return { 'OK', 1, decision, version }
