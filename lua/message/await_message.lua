-- Have a running task wait for messages, and free its worker; not if one is there already.
-- A repetition finds its write, and changes nothing.
-- KEYS task                     hash: version, write, order, status, waits_box, waits_until, waits_ms, waits_for,
--   crashes, pause_entry, pause_token, pause_write, epoch and the fields given
-- KEYS tasks                    zset: task_id -> expiry in us
-- KEYS lease                    hash: owner, claim, epoch, expires
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS journal                  hash: box:<box>, entries; lives as long as the task
-- ARGV announcement.channel     channel
-- ARGV mark                     of the worker's lease
-- ARGV left_ms                  int: how long it waits at most
-- ARGV write                    id of this call
-- ARGV ttl_ms                   int: of the task, after that
-- ARGV task_id                  the task's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of it
-- ARGV boxes                    kinds and names, each between zero bytes
-- ARGV fields..                 names and values, in turn
-- Returns
--   {'OK', version}       it is paused
--   {'AGAIN'}             a message is there, or the time is over; nothing was written
--   {'DENIED', status}    the task does not run; nothing was written
--   {'LOST', epoch}       another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
-- Emits the update on channel
-- @include now_ms
-- @include journal_fence
-- @include lease_rest
-- @include record_write
-- @include announce
-- @include mail_there

local was = redis.call('HMGET', task, 'status', 'pause_write', 'version')
-- A repetition may come after a message: only the next pause writes this field again.
if was[2] == write then return { 'OK', tonumber(was[3]) } end
local lost = journal_fence(lease, mark, journal)
if lost then return lost end
if was[1] ~= 'RUNNING' then return { 'DENIED', was[1] or '' } end
if left_ms <= 0 or mail_there(journal, boxes) then return { 'AGAIN' } end
local now = now_ms()
announce(announcement, task_id, now)
local waits = { 'waits_box', boxes, 'waits_until', string.format('%.0f', now + left_ms),
  'waits_ms', left_ms .. ' ' .. write, 'pause_entry', '', 'pause_token', '', 'pause_write', write }
for _, field in ipairs(waits) do fields[#fields + 1] = field end
redis.call('HDEL', task, 'crashes', 'waits_for')
local life_ms = left_ms + ttl_ms
local version = record_write(task, { key = tasks, member = task_id }, write, life_ms, fields)
redis.call('PEXPIRE', journal, life_ms)
lease_rest(lease, life_ms, task)
return { 'OK', version }
