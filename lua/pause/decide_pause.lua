-- Decide a pause, once: resolve its token, note it in the journal, and set the task pending if it
-- waits for this pause. That nobody decided in time is a claim like any other, allowed only then.
-- A pause that names who decides it takes a vote of each. The vote that decides is the decision.
-- KEYS task                     hash: version, write, order, status, finished, attempts,
--   pause_token and the fields given
-- KEYS tasks                    zset: task_id -> expiry in us; \255 and a token's digest -> minus its expiry in ms
-- KEYS lease                    hash: epoch, claim
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS token                    hash: state, payload, order, expires, claim, actor, at, decision, task, approvals,
--   rejections, seat:<actor>, vote:<actor>, claim:<actor>
-- KEYS journal                  hash: entry -> JSON
-- ARGV announcement.channel     channel
-- ARGV mark                     of the lease of a worker that decides on its own task, '' for anybody else
-- ARGV overdue                  flag: decide only what nobody decided in time
-- ARGV claim                    id of this call
-- ARGV actor                    who decides
-- ARGV decision                 JSON
-- ARGV approves                 flag: what a vote is
-- ARGV vote                     JSON: actor and decision; '' for a pause that names nobody
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
-- ARGV announcement.voted_id     update id, '' for a pause that names nobody
-- ARGV announcement.voted        the update that tells of a vote
-- ARGV fields..                 names and values, in turn
-- Returns
--   {'OK', status, attempts, looked}  this claim has it; the task's state now, and how often it was started; what
--                              look_task returns of it behind its word; nothing if it is gone or cannot be read
--   {'COUNTED', approved, rejected}  the vote is taken, and the pause is open; how many there are
--   {'REFUSED', seat}            the actor has voted otherwise, or may not vote; '' for one who is not named
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
-- @include pause_member
-- @include pause_vote
-- @include pause_votes
-- @include task_looked

local use = { claim = claim, actor = actor, decision = decision, keep_ms = keep_ms, late = overdue,
  vote = vote, approves = approves }
local lost = fence(lease, mark)
if lost then return lost end
local was = redis.call('HMGET', task, 'status', 'finished', 'order', 'pause_token', 'attempts')
local held = redis.call('HMGET', token, 'state', 'order', 'expires', 'approvals')
local digest = string.match(token, '[^:]*$')
local status, waits, now = was[1], was[1] == 'PAUSED' and string.match(was[4] or '', '[^:]*$') == digest, now_ms()
local attempts, ballot = tonumber(was[5] or 0), held[4] and not overdue
-- The decision stands, whatever is damaged beside it: look_task tells of that.
local function looked()
  local read, found = pcall(task_looked, task, lease, now)
  return read and found or {}
end
if ballot and held[1] == 'resolved' then
  local voted = redis.call('HMGET', token, 'vote:' .. actor, 'claim:' .. actor, 'actor', 'at', 'decision')
  if voted[1] == vote and voted[2] == claim then
    return { 'OK', status or '', attempts, looked() }
  end
  return { 'TAKEN', voted[3], tonumber(voted[4]), voted[5] }
elseif held[1] ~= 'resolved' then
  -- The token of an earlier task of this id has another order.
  if not status or (held[1] and held[2] ~= was[3]) then return { 'MISSING' } end
  if was[2] == '1' then return { 'DENIED', status } end
  if overdue and held[1] and tonumber(held[3]) > now then return { 'HELD', tonumber(held[3]) - now } end
end
announcement.topic = task_id
local row_id, row = announcement.other_id, announcement.other
if waits then row_id, row = announcement.row_id, announcement.row end
function use.say() log_append(announcement, row_id, row, now) end
if ballot and held[1] == 'open' and tonumber(held[3]) > now then
  local answer, decides, number = pause_vote(token, use)
  if answer then return answer end
  if not decides then row_id, row = announcement.voted_id, announcement.voted end
  use.say()
  local seat = string.format('%s %.0f %d', approves and 'approved' or 'rejected', now, number)
  redis.call('HSET', token, 'seat:' .. actor, seat, 'vote:' .. actor, vote, 'claim:' .. actor, claim)
  if not decides then
    local seats = pause_count(token)
    return { 'COUNTED', seats.approved, seats.rejected }
  end
end
local reply, won = token_resolve(token, use, now)
-- An open token goes only some time after its deadline: who still waits for it waits in vain.
if reply[1] == 'MISSING' and overdue and (waits or mark ~= '') then
  use.say()
  reply, won = { 'OK' }, true
end
if reply[1] ~= 'OK' then return reply end
if won then
  redis.call('HSET', journal, entry, held[4] and pause_votes(token, note) or note)
  if redis.call('PTTL', journal) < ttl_ms then redis.call('PEXPIRE', journal, ttl_ms) end
  redis.call('ZREM', tasks, pause_member(token))
  if waits then
    status = 'PENDING'
    record_write(task, { key = tasks, member = task_id }, row_id, ttl_ms, fields)
  end
end
return { 'OK', status or '', attempts, looked() }
