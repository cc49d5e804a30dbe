-- Set the attributes of a running task, once per entry of its journal. A repetition finds the entry.
-- KEYS task        hash: version, write, attributes
-- KEYS lease       hash: epoch, claim
-- KEYS journal     hash: entry -> JSON, lane:<name> -> JSON, entries
-- ARGV mark        of the worker's lease
-- ARGV entry       of the journal
-- ARGV attributes  JSON: all that it has then
-- ARGV write       id of this call
-- ARGV lane.entry  entry of the journal, '' for none
-- ARGV lane.state  JSON: where the lane stands
-- Returns
--   {'OK', version, entries}  they are set; how many entries the journal has
--   {'STALE', entries}        they were set before; nothing was written
--   {'LOST', epoch}           another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
--   {'MISSING'}               no such task
-- @include journal_fence
-- @include journal_count
-- @lasting

local lost = journal_fence(lease, mark, journal)
if lost then return lost end
local ends = redis.call('PEXPIRETIME', task)
if ends == -2 then return { 'MISSING' } end
local was = redis.call('HMGET', task, 'version', 'write')
if was[2] == write then return { 'OK', tonumber(was[1]), tonumber(redis.call('HGET', journal, 'entries')) } end
if redis.call('HSETNX', journal, entry, 1) == 0 then
  return { 'STALE', tonumber(redis.call('HGET', journal, 'entries') or 0) }
end
redis.call('HSET', task, 'attributes', attributes, 'write', write)
local version = redis.call('HINCRBY', task, 'version', 1)
local entries = journal_count(journal, lane.entry, lane.state)
if ends > 0 then redis.call('PEXPIREAT', journal, ends) end
return { 'OK', version, entries }
