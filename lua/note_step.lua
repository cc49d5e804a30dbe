-- Note a finished step in a task's journal, once; a step noted before keeps its first result.
-- KEYS[1] journal  hash: entry -> JSON
-- KEYS[2] lease    hash: epoch
-- ARGV[1] epoch    of the worker's lease
-- ARGV[2] entry    of the journal
-- ARGV[3] result   JSON
-- ARGV[4] ttl_ms   of the journal
-- Returns
--   {'OK', result}   what the journal holds now
--   {'LOST', epoch}  the lease is at a later epoch; nothing was written
-- @include fence
local journal, lease = KEYS[1], KEYS[2]
local epoch, entry, result, ttl_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local lost = fence(lease, epoch)
if lost then return lost end
redis.call('HSETNX', journal, entry, result)
redis.call('PEXPIRE', journal, ttl_ms)
return { 'OK', redis.call('HGET', journal, entry) }
