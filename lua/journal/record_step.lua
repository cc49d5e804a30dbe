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
-- @include fence
-- @include journal_rewound
-- @each
-- @lasting

local lost = fence(lease, mark)
if lost then return lost end
local left_over = 'part:' .. chunks .. ':' .. entry
local note, entries, versions, part = unpack(redis.call('HMGET', journal, entry, 'entries', 'versions', left_over))
lost = journal_rewound(mark, entries)
if lost then return lost end
local ends = redis.call('PEXPIRETIME', task)
if ends == -2 then return { 'MISSING' } end
entries = tonumber(entries or 0)
if not note then
  local version, epoch = tonumber(versions or 0) + 1, string.match(mark, '^%d+')
  note = string.format('[1,%d,%s,%.0f,%s,', version, epoch, now_ms(), tostring(checkpoint)) .. about .. ',' .. result .. ']'
  entries = entries + 1
  local written = { entry, note, 'versions', string.format('%.0f', version), 'entries', string.format('%.0f', entries) }
  if lane.entry ~= '' then written[7], written[8] = lane.entry, lane.state end
  redis.call('HSET', journal, unpack(written))
  -- An earlier attempt may have died after more chunks than this one has.
  while part and redis.call('HDEL', journal, left_over) == 1 do
    chunks = chunks + 1
    left_over = 'part:' .. chunks .. ':' .. entry
  end
end
if ends > 0 then redis.call('PEXPIREAT', journal, ends) end
return { 'OK', note, entries }
