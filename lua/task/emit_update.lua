-- Append an update of a running task to its session's log, and note in the journal that it is there:
-- a replay asks the journal, which remembers for as long as the task lives, and not the log.
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS lease                    hash: epoch, claim
-- KEYS journal                  hash: lane:<name> -> JSON, entries
-- KEYS task                     hash: the journal lives as long as it
-- ARGV announcement.channel     channel
-- ARGV mark                     of the worker's lease
-- ARGV task_id                  the task's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV lane.entry               entry of the journal
-- ARGV lane.state               JSON: where the lane stands then
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update
-- Returns
--   {'OK', entries}       it is in the log; how many entries the journal has
--   {'LOST', epoch}       another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
--   {'MISSING'}           no such task
-- Emits the update on channel
-- @include now_ms
-- @include journal_fence
-- @include journal_count
-- @include announce
-- @each
-- @lasting

local lost = journal_fence(lease, mark, journal)
if lost then return lost end
local ends = redis.call('PEXPIRETIME', task)
if ends == -2 then return { 'MISSING' } end
local _, new = announce(announcement, task_id, now_ms())
if new == 0 then return { 'OK', tonumber(redis.call('HGET', journal, 'entries') or 0) } end
local entries = journal_count(journal, lane.entry, lane.state)
if ends > 0 then redis.call('PEXPIREAT', journal, ends) end
return { 'OK', entries }
