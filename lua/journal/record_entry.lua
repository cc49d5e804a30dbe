-- Record an entry in a task's journal, once; one that is there stays.
-- KEYS journal     hash: entry -> JSON, lane:<name> -> JSON, entries
-- KEYS lease       hash: epoch, claim
-- KEYS task        hash: the journal lives as long as it
-- ARGV mark        of the worker's lease
-- ARGV entry       of the journal
-- ARGV value       JSON
-- ARGV lane.entry  entry of the journal, '' for none
-- ARGV lane.state  JSON: where the lane stands
-- Returns
--   {'OK', entries}       it is there; how many entries the journal has
--   {'LOST', epoch}       another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
--   {'MISSING'}           no such task
-- @include journal_fence
-- @include journal_count
-- @each
-- @lasting

local lost = journal_fence(lease, mark, journal)
if lost then return lost end
local ends = redis.call('PEXPIRETIME', task)
if ends == -2 then return { 'MISSING' } end
if redis.call('HSETNX', journal, entry, value) == 0 then
  return { 'OK', tonumber(redis.call('HGET', journal, 'entries') or 0) }
end
local entries = journal_count(journal, lane.entry, lane.state)
if ends > 0 then redis.call('PEXPIREAT', journal, ends) end
return { 'OK', entries }
