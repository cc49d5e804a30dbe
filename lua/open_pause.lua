-- Open a pause of a running task, once: its token, the journal's note and the update that tells.
-- KEYS[1] task     hash: status, order
-- KEYS[2] lease    hash: epoch, claim
-- KEYS[3] rows     stream of the session's updates
-- KEYS[4] ids      hash: its ids
-- KEYS[5] topic_rows  list: the task's index in it
-- KEYS[6] channel  pub/sub
-- KEYS[7] token    hash: state, payload, task, order, opened, expires
-- KEYS[8] journal  hash: entry -> JSON, lane:<name> -> JSON, entries
-- KEYS[9] pauses   zset: key of a token -> expiry in ms: the session's open pauses
-- ARGV[1] mark     of the worker's lease
-- ARGV[2] entry    of the journal
-- ARGV[3] note     JSON, for the journal
-- ARGV[4] owner    JSON: session, task, entry
-- ARGV[5] about    JSON, for whoever decides
-- ARGV[6] token_ttl_ms  until it is overdue
-- ARGV[7] keep_ms  how long its trace is kept afterwards
-- ARGV[8] ttl_ms   of the task
-- ARGV[9] topic    the task's id
-- ARGV[10] max_rows of the updates
-- ARGV[11] log_ttl_ms  of the updates
-- ARGV[12] row_id  update id
-- ARGV[13] row     the update that tells of the pause
-- ARGV[14] lane    entry of the journal, '' for none
-- ARGV[15] state   JSON: where the lane stands then
-- Returns
--   {'OK', note, left_ms, entries}  what the journal holds, of this call or an earlier one; 0 ms if it
--                          is not open; how many entries the journal has
--   {'DENIED', status}     the task does not run; nothing was written
--   {'LOST', epoch}        another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
-- Emits the update on channel
-- @include now_ms
-- @include journal_fence
-- @include journal_count
-- @include log_append
local task, lease, token, journal, pauses = KEYS[1], KEYS[2], KEYS[7], KEYS[8], KEYS[9]
local log = { rows = KEYS[3], ids = KEYS[4], topic_rows = KEYS[5], channel = KEYS[6] }
local mark, entry, note, owner, about = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local token_ttl_ms, keep_ms, ttl_ms = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
log.topic, log.max_rows, log.ttl_ms = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11])
local row_id, row, lane, state = ARGV[12], ARGV[13], ARGV[14], ARGV[15]

local lost = journal_fence(lease, mark, journal)
if lost then return lost end
local now = now_ms()
local noted, entries = unpack(redis.call('HMGET', journal, entry, 'entries'))
if noted then
  local was = redis.call('HMGET', token, 'state', 'expires')
  local left_ms = was[1] == 'open' and tonumber(was[2]) - now or 0
  return { 'OK', noted, math.max(left_ms, 0), tonumber(entries or 0) }
end
local found = redis.call('HMGET', task, 'status', 'order')
if found[1] ~= 'RUNNING' then return { 'DENIED', found[1] or '' } end
log_append(log, row_id, row, now)
local expires = string.format('%.0f', now + token_ttl_ms)
redis.call('HSET', token, 'state', 'open', 'payload', about, 'task', owner, 'order', found[2],
  'opened', string.format('%.0f', now), 'expires', expires)
redis.call('PEXPIRE', token, token_ttl_ms + keep_ms)
redis.call('HSET', journal, entry, note)
entries = journal_count(journal, lane, state)
redis.call('PEXPIRE', journal, ttl_ms)
redis.call('ZREMRANGEBYSCORE', pauses, '-inf', string.format('%.0f', now))
redis.call('ZADD', pauses, expires, token)
if redis.call('PTTL', pauses) < token_ttl_ms then redis.call('PEXPIRE', pauses, token_ttl_ms) end
return { 'OK', note, token_ttl_ms, entries }
