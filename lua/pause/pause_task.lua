-- Have a running task wait for one of its open pauses, and free its worker; not if that is decided.
-- A repetition finds its write, and changes nothing.
-- KEYS task                     hash: version, write, order, status, pause_entry, pause_token, pause_write,
--   crashes, waits_for, epoch and the fields given
-- KEYS tasks                    zset: task_id -> expiry in us
-- KEYS lease                    hash: owner, claim, epoch, expires
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS token                    hash: state, expires, actor, at, decision
-- KEYS journal                  hash: entry -> JSON, entries; lives as long as the task
-- ARGV announcement.channel     channel
-- ARGV mark                     of the worker's lease
-- ARGV entry                    of the journal
-- ARGV write                    id of this call
-- ARGV ttl_ms                   int: of the task, after the pause's deadline
-- ARGV task_id                  the task's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of it
-- ARGV fields..                 names and values, in turn
-- Returns
--   {'OK', version}              it is paused
--   {'TAKEN', by, at, decision}  the pause is decided; nothing was written
--   {'EXPIRED'}                  nobody decided it in time; nothing was written
--   {'MISSING'}                  there is no trace of its token; nothing was written
--   {'DENIED', status}           the task does not run; nothing was written
--   {'LOST', epoch}              another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
-- Emits the update on channel
-- @include now_ms
-- @include journal_fence
-- @include lease_rest
-- @include record_write
-- @include announce

local was = redis.call('HMGET', task, 'status', 'pause_write', 'version')
-- A repetition may come after the decision: only the next pause writes this field again.
if was[2] == write then return { 'OK', tonumber(was[3]) } end
local lost = journal_fence(lease, mark, journal)
if lost then return lost end
if was[1] ~= 'RUNNING' then return { 'DENIED', was[1] or '' } end
local held = redis.call('HMGET', token, 'state', 'expires', 'actor', 'at', 'decision')
if not held[1] then return { 'MISSING' } end
if held[1] == 'resolved' then return { 'TAKEN', held[3], tonumber(held[4]), held[5] } end
local now = now_ms()
local left_ms = tonumber(held[2]) - now
if left_ms <= 0 then return { 'EXPIRED' } end
announce(announcement, task_id, now)
-- What is not there takes no memory: no worker has died, and it waits for no child.
redis.call('HDEL', task, 'crashes', 'waits_for')
-- The token's digest, which is the last part of its key.
local digest = string.match(token, '[^:]*$')
for _, field in ipairs({ 'pause_entry', entry, 'pause_token', digest, 'pause_write', write }) do
  fields[#fields + 1] = field
end
local life_ms = left_ms + ttl_ms
local version = record_write(task, { key = tasks, member = task_id }, write, life_ms, fields)
redis.call('PEXPIRE', journal, life_ms)
lease_rest(lease, life_ms, task)
return { 'OK', version }
