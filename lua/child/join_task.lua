-- Make a running task wait for the end of one of its children, and free its worker; not if the child
-- has ended. A repetition finds its write, and changes nothing.
-- KEYS task                     hash: version, write, order, status, waits_for, crashes, pause_entry, pause_token,
--   pause_write, epoch and the fields given
-- KEYS tasks                    zset: task_id -> expiry in us
-- KEYS lease                    hash: owner, claim, epoch, expires
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS child.task               hash: finished
-- KEYS journal                  hash: entry -> JSON, entries; lives as long as the task
-- ARGV announcement.channel     channel
-- ARGV mark                     of the worker's lease
-- ARGV child.task_id            whose end it waits for
-- ARGV write                    id of this call
-- ARGV ttl_ms                   int: of the task
-- ARGV task_id                  the task's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of it
-- ARGV fields..                 names and values, in turn
-- Returns
--   {'OK', version}     it is paused
--   {'AGAIN'}           the child has ended; nothing was written
--   {'MISSING'}         there is no such child; nothing was written
--   {'DENIED', status}  the task does not run; nothing was written
--   {'LOST', epoch}     another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
-- Emits the update on channel
-- @include now_ms
-- @include journal_fence
-- @include lease_rest
-- @include record_write
-- @include announce

local was = redis.call('HMGET', task, 'status', 'pause_write', 'version')
-- A repetition may come after the child's end: only the next pause writes this field again.
if was[2] == write then return { 'OK', tonumber(was[3]) } end
local lost = journal_fence(lease, mark, journal)
if lost then return lost end
if was[1] ~= 'RUNNING' then return { 'DENIED', was[1] or '' } end
local finished = redis.call('HGET', child.task, 'finished')
if not finished then return { 'MISSING' } end
if finished == '1' then return { 'AGAIN' } end
announce(announcement, task_id, now_ms())
-- No decision of an earlier pause, nor its deadline, is what the task waits for now.
local waits = { 'waits_for', child.task_id, 'pause_entry', '', 'pause_token', '', 'pause_write', write }
redis.call('HDEL', task, 'crashes')
for _, field in ipairs(waits) do fields[#fields + 1] = field end
local version = record_write(task, { key = tasks, member = task_id }, write, ttl_ms, fields)
redis.call('PEXPIRE', journal, ttl_ms)
lease_rest(lease, ttl_ms, task)
return { 'OK', version }
