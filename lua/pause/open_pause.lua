-- Open a pause of a running task, once: its token, the journal's entry and the update.
-- KEYS task                     hash: status, order
-- KEYS lease                    hash: epoch, claim
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS token                    hash: state, payload, task, order, opened, expires and the fields given
-- KEYS journal                  hash: entry -> JSON, lane:<name> -> JSON, entries
-- KEYS tasks                    zset: task_id -> expiry in us; \255 and a token's digest -> minus its expiry in ms
-- ARGV announcement.channel     channel
-- ARGV mark                     of the worker's lease
-- ARGV entry                    of the journal
-- ARGV note                     JSON, for the journal
-- ARGV owner                    JSON: session, task, entry
-- ARGV about                    JSON, for whoever decides
-- ARGV token_ttl_ms             int: until it is overdue
-- ARGV keep_ms                  int: how long its trace is kept afterwards
-- ARGV ttl_ms                   int: of the task
-- ARGV task_id                  the task's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of the pause
-- ARGV before                   int: ms, by when it must be opened; '' for any time
-- ARGV lane.entry               entry of the journal, '' for none
-- ARGV lane.state               JSON: where the lane stands then
-- ARGV extra..                  names and values, in turn: further fields of the token
-- Returns
--   {'OK', note, left_ms, entries, opened}  what the journal holds, of this call or an earlier one; 0 ms if
--                          it is not open; how many entries the journal has; when it was opened, in ms
--   {'DENIED', status}     the task does not run; nothing was written
--   {'EXPIRED'}            it is too late; nothing was written
--   {'LOST', epoch}        another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
-- Emits the update on channel
-- @include now_ms
-- @include journal_fence
-- @include journal_count
-- @include announce
-- @include pause_member

local lost = journal_fence(lease, mark, journal)
if lost then return lost end
local now = now_ms()
local function list(expires, life_ms)
  redis.call('ZREMRANGEBYSCORE', tasks, string.format('-%.0f', now), '(0')
  redis.call('ZADD', tasks, '-' .. expires, pause_member(token))
  if redis.call('PTTL', tasks) < life_ms then redis.call('PEXPIRE', tasks, life_ms) end
end
local recorded, entries = unpack(redis.call('HMGET', journal, entry, 'entries'))
if recorded then
  local was = redis.call('HMGET', token, 'state', 'expires', 'opened')
  local left_ms = was[1] == 'open' and tonumber(was[2]) - now or 0
  -- Who read the list while the task was cancelled has taken it off.
  if left_ms > 0 then list(was[2], left_ms) end
  return { 'OK', recorded, math.max(left_ms, 0), tonumber(entries or 0), tonumber(was[3] or 0) }
end
local found = redis.call('HMGET', task, 'status', 'order')
if found[1] ~= 'RUNNING' then return { 'DENIED', found[1] or '' } end
if before and now > before then return { 'EXPIRED' } end
announce(announcement, task_id, now)
local expires = string.format('%.0f', now + token_ttl_ms)
-- The token of a pause that timed out and is opened again: its votes and escalations are not this one's.
redis.call('DEL', token)
redis.call('HSET', token, 'state', 'open', 'payload', about, 'task', owner, 'order', found[2],
  'opened', string.format('%.0f', now), 'expires', expires, unpack(extra))
redis.call('PEXPIRE', token, token_ttl_ms + keep_ms)
redis.call('HSET', journal, entry, note)
entries = journal_count(journal, lane.entry, lane.state)
redis.call('PEXPIRE', journal, ttl_ms)
list(expires, token_ttl_ms)
return { 'OK', note, token_ttl_ms, entries, now }
