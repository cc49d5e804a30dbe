-- Record a finished step in a task's journal, once. A repeated step keeps its first result and its
-- version. Chunks that the record does not need are dropped.
-- KEYS journal     hash: entry -> JSON, part:<number>:<entry> -> bytes, lane:<name> -> JSON, versions,
--   entries
-- KEYS lease       hash: epoch, claim
-- KEYS task        hash: the journal lives as long as it
-- ARGV mark        of the worker's lease
-- ARGV entry       of the journal
-- ARGV checkpoint  flag: a snapshot may be taken of it
-- ARGV chunks      int: how many hold the result; 0 if the note itself does
-- ARGV about       JSON: bytes, chunks and SHA-256 of the result
-- ARGV result      JSON; null if it stands in chunks
-- ARGV lane.entry  entry of the journal, '' for none
-- ARGV lane.state  JSON: where the lane stands then
-- Returns
--   {'OK', note, entries}  what the journal holds now: a row of JSON with version, epoch, ms,
--                    checkpoint, about, result; and how many entries it has
--   {'LOST', epoch}  another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
--   {'MISSING'}      no such task
-- @include now_ms
-- @include journal_fence
-- @include journal_count
-- @each
-- @lasting

local lost = journal_fence(lease, mark, journal)
if lost then return lost end
local ends = redis.call('PEXPIRETIME', task)
if ends < 0 then return { 'MISSING' } end
local note, entries = unpack(redis.call('HMGET', journal, entry, 'entries'))
if not note then
  local version = redis.call('HINCRBY', journal, 'versions', 1)
  local epoch = string.match(mark, '^%d+')
  note = string.format('[1,%d,%s,%.0f,%s,', version, epoch, now_ms(), tostring(checkpoint)) .. about .. ',' .. result .. ']'
  redis.call('HSET', journal, entry, note)
  entries = journal_count(journal, lane.entry, lane.state)
  -- An earlier attempt may have died after more chunks than this one has.
  while redis.call('HDEL', journal, 'part:' .. chunks .. ':' .. entry) == 1 do chunks = chunks + 1 end
end
redis.call('PEXPIREAT', journal, ends)
return { 'OK', note, tonumber(entries or 0) }
