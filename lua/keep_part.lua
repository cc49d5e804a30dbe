-- Put one chunk of a step's large result into the task's journal, ahead of the note that names it.
-- KEYS[1] journal  hash: entry -> JSON, part:<number>:<entry> -> bytes, versions
-- KEYS[2] lease    hash: epoch, claim
-- KEYS[3] task     hash: the journal lives as long as it
-- ARGV[1] mark     of the worker's lease
-- ARGV[2] entry    of the journal
-- ARGV[3] number   of the chunk, from 0
-- ARGV[4] bytes    of the chunk
-- Returns
--   {'OK', number}   it is kept
--   {'STALE'}        the step is noted already; nothing was written
--   {'LOST', epoch}  another claim has the lease; nothing was written
--   {'MISSING'}      no such task
-- @include fence
local journal, lease, task = KEYS[1], KEYS[2], KEYS[3]
local mark, entry, number, bytes = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local lost = fence(lease, mark)
if lost then return lost end
local ends = redis.call('PEXPIRETIME', task)
if ends < 0 then return { 'MISSING' } end
if redis.call('HEXISTS', journal, entry) == 1 then return { 'STALE' } end
redis.call('HSET', journal, 'part:' .. number .. ':' .. entry, bytes)
redis.call('PEXPIREAT', journal, ends)
return { 'OK', tonumber(number) }
