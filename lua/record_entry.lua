-- Record an entry in a task's journal, once; one that is there stays.
-- KEYS[1] journal  hash: entry -> JSON, lane:<name> -> JSON, entries
-- KEYS[2] lease    hash: epoch, claim
-- KEYS[3] task     hash: the journal lives as long as it
-- ARGV[1] mark     of the worker's lease
-- ARGV[2] entry    of the journal
-- ARGV[3] value    JSON
-- ARGV[4] lane     entry of the journal, '' for none
-- ARGV[5] state    JSON: where the lane stands
-- Returns
--   {'OK', entries}       it is there; how many entries the journal has
--   {'LOST', epoch}       another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
--   {'MISSING'}           no such task
-- @include journal_fence
-- @include journal_count
-- @each
local journal, lease, task = KEYS[1], KEYS[2], KEYS[3]
local mark, entry, value, lane, state = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local lost = journal_fence(lease, mark, journal)
if lost then return lost end
local ends = redis.call('PEXPIRETIME', task)
if ends < 0 then return { 'MISSING' } end
if redis.call('HSETNX', journal, entry, value) == 0 then
  return { 'OK', tonumber(redis.call('HGET', journal, 'entries') or 0) }
end
local entries = journal_count(journal, lane, state)
redis.call('PEXPIREAT', journal, ends)
return { 'OK', entries }
