-- Decide a pause, once: resolve its token, note it in the journal, and set the task pending if it
-- waits for this pause. That nobody decided in time is a claim like any other, allowed only then.
-- KEYS task                     hash: version, write, order, status, finished, attempts,
--   pause_token and the fields given
-- KEYS tasks                    zset: task_id -> expiry in us
-- KEYS lease                    hash: epoch, claim
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS announcement.topic_rows  list: the task's index in it
-- KEYS token                    hash: state, payload, order, expires, claim, actor, at, decision, task
-- KEYS journal                  hash: entry -> JSON
-- KEYS pauses                   zset: key of a token -> expiry in ms: the session's open pauses
-- ARGV announcement.channel     channel
-- ARGV mark                     of the lease of a worker that decides on its own task, '' for anybody else
-- ARGV overdue                  flag: decide only what nobody decided in time
-- ARGV claim                    id of this call
-- ARGV actor                    who decides
-- ARGV decision                 JSON
-- ARGV keep_ms                  int: how long the answer is kept for repeated and late calls
-- ARGV entry                    of the journal
-- ARGV note                     JSON, for the journal
-- ARGV ttl_ms                   int: of the task
-- ARGV task_id                  the task's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of the decision and of the task's new state
-- ARGV announcement.other_id    update id
-- ARGV announcement.other       the update that tells of the decision only
-- ARGV fields..                 names and values, in turn
-- Returns
--   {'OK', status, attempts}     this claim has it; the task's state now, and how often it was started
--   {'TAKEN', by, at, decision}  another claim has it, or this one with another decision
--   {'EXPIRED'}                  nobody decided in time
--   {'HELD', left_ms}            it is not overdue yet
--   {'MISSING'}                  no such pause, or its trace is gone
--   {'DENIED', status}           the task is over; the token was left alone
--   {'LOST', epoch}              another claim has the lease; nothing was written
-- Emits one of the updates on channel
-- @include now_ms
-- @include fence
-- @include token_resolve
-- @include record_write
-- @include log_append

local use = { claim = claim, actor = actor, decision = decision, keep_ms = keep_ms, late = overdue }
local lost = fence(lease, mark)
if lost then return lost end
local was = redis.call('HMGET', task, 'status', 'finished', 'order', 'pause_token')
local held = redis.call('HMGET', token, 'state', 'order', 'expires')
local status, waits, now = was[1], was[1] == 'PAUSED' and was[4] == token, now_ms()
if held[1] ~= 'resolved' then
  -- The token of an earlier task of this id has another order.
  if not status or (held[1] and held[2] ~= was[3]) then return { 'MISSING' } end
  if was[2] == '1' then return { 'DENIED', status } end
  if overdue and held[1] and tonumber(held[3]) > now then return { 'HELD', tonumber(held[3]) - now } end
end
local reply, won = token_resolve(token, use, now)
-- An open token goes only some time after its deadline: who still waits for it waits in vain.
if reply[1] == 'MISSING' and overdue and (waits or mark ~= '') then reply, won = { 'OK' }, true end
if reply[1] ~= 'OK' then return reply end
if won then
  announcement.topic = task_id
  local row_id = waits and announcement.row_id or announcement.other_id
  log_append(announcement, row_id, waits and announcement.row or announcement.other, now)
  redis.call('HSET', journal, entry, note)
  if redis.call('PTTL', journal) < ttl_ms then redis.call('PEXPIRE', journal, ttl_ms) end
  redis.call('ZREM', pauses, token)
  if waits then
    status = 'PENDING'
    record_write(task, { key = tasks, member = task_id }, row_id, ttl_ms, fields)
  end
end
return { 'OK', status or '', tonumber(redis.call('HGET', task, 'attempts') or 0) }
