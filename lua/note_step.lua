-- Note a finished step in a task's journal, once; a step noted before keeps its first result and
-- its version. Chunks of it that the note does not need are dropped.
-- KEYS[1] journal  hash: entry -> JSON, part:<number>:<entry> -> bytes, versions
-- KEYS[2] lease    hash: epoch
-- KEYS[3] task     hash: the journal lives as long as it
-- ARGV[1] epoch    of the worker's lease
-- ARGV[2] entry    of the journal
-- ARGV[3] checkpoint  true or false
-- ARGV[4] chunks   how many hold the result; 0 if the note itself does
-- ARGV[5] about    JSON: bytes, chunks and SHA-256 of the result
-- ARGV[6] result   JSON; null if it stands in chunks
-- Returns
--   {'OK', note}     what the journal holds now: a row of JSON with version, epoch, ms, checkpoint,
--                    about, result
--   {'LOST', epoch}  the lease is at a later epoch; nothing was written
--   {'MISSING'}      no such task
-- @include now_ms
-- @include fence
-- @each
local journal, lease, task = KEYS[1], KEYS[2], KEYS[3]
local epoch, entry, checkpoint, chunks = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local about, result = ARGV[5], ARGV[6]

local lost = fence(lease, epoch)
if lost then return lost end
local ends = redis.call('PEXPIRETIME', task)
if ends < 0 then return { 'MISSING' } end
local note = redis.call('HGET', journal, entry)
if not note then
  local version = redis.call('HINCRBY', journal, 'versions', 1)
  note = string.format('[1,%d,%s,%.0f,%s,', version, epoch, now_ms(), checkpoint) .. about .. ',' .. result .. ']'
  redis.call('HSET', journal, entry, note)
  -- An earlier attempt may have died after more chunks than this one has.
  while redis.call('HDEL', journal, 'part:' .. chunks .. ':' .. entry) == 1 do chunks = chunks + 1 end
end
redis.call('PEXPIREAT', journal, ends)
return { 'OK', note }
