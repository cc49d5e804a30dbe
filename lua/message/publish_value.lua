-- Publish a value of a running task under a key, with its update. The last value of a
-- key stands. A repetition finds its update and writes nothing.
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS lease                    hash: epoch, claim
-- KEYS journal                  hash: value:<key> -> JSON, values, lane:<name> -> JSON, entries
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
-- ARGV entry                    of the journal: the value's
-- ARGV value                    JSON
-- ARGV most                     int: how many keys a task may have
-- Returns
--   {'OK', entries}       it stands; how many entries the journal has
--   {'FULL', count}       the task has that many other keys; nothing was written
--   {'LOST', epoch}       another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
--   {'MISSING'}           no such task
-- Emits the update on channel
-- @include now_ms
-- @include journal_fence
-- @include journal_count
-- @include announce
-- @lasting

local lost = journal_fence(lease, mark, journal)
if lost then return lost end
local ends = redis.call('PEXPIRETIME', task)
if ends == -2 then return { 'MISSING' } end
local known, values = unpack(redis.call('HMGET', journal, entry, 'values'))
if not known and tonumber(values or 0) >= most then return { 'FULL', tonumber(values) } end
local now = now_ms()
local _, new = announce(announcement, task_id, now)
if new == 0 then return { 'OK', tonumber(redis.call('HGET', journal, 'entries') or 0) } end
local epoch = string.match(mark, '^%d+')
redis.call('HSET', journal, entry, string.format('[1,%.0f,%s,', now, epoch) .. value .. ']')
if not known then redis.call('HINCRBY', journal, 'values', 1) end
local entries = journal_count(journal, lane.entry, lane.state)
if ends > 0 then redis.call('PEXPIREAT', journal, ends) end
return { 'OK', entries }
