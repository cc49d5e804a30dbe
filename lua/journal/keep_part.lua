-- Put one chunk of a step's large result into the task's journal, ahead of the note that names it.
-- KEYS journal  hash: entry -> JSON, part:<number>:<entry> -> bytes, versions
-- KEYS lease    hash: epoch, claim
-- KEYS task     hash: the journal lives as long as it
-- ARGV mark     of the worker's lease
-- ARGV entry    of the journal
-- ARGV number   of the chunk, from 0
-- ARGV data     of the chunk
-- Returns
--   {'OK', number}   it is kept
--   {'STALE'}        the step is recorded already; nothing was written
--   {'LOST', epoch}  another claim has the lease; nothing was written
--   {'MISSING'}      no such task
-- @include fence

local lost = fence(lease, mark)
if lost then return lost end
local ends = redis.call('PEXPIRETIME', task)
if ends == -2 then return { 'MISSING' } end
if redis.call('HEXISTS', journal, entry) == 1 then return { 'STALE' } end
redis.call('HSET', journal, 'part:' .. number .. ':' .. entry, data)
if ends > 0 then redis.call('PEXPIREAT', journal, ends) end
return { 'OK', tonumber(number) }
