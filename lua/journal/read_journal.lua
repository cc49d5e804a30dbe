-- Read a task's journal without the chunks of large results, the ends of children, the published
-- values and the mail, and have it live as long as the task.
-- KEYS journal  hash: entry -> JSON, part:<number>:<entry> -> bytes,
--   end:<child> -> JSON, lane:<name> -> JSON, value:<key> -> JSON, versions, entries, values; what
--   send_message and take_message write
-- KEYS task     hash
-- ARGV portion  int: how many entries are fetched at a time
-- Returns
--   {'OK', notes, count}  entries and their notes, in turn; how many entries runs have written

local entries, notes = {}, {}
local not_read = {
  versions = true, entries = true, part = true, ['end'] = true, value = true, values = true,
  mail = true, box = true, mailed = true, due = true, asks = true,
}
for _, name in ipairs(redis.call('HKEYS', journal)) do
  local kind = string.match(name, '^[^:]*')
  if not not_read[kind] then entries[#entries + 1] = name end
end
for first = 1, #entries, portion do
  local last = math.min(first + portion - 1, #entries)
  for i, note in ipairs(redis.call('HMGET', journal, unpack(entries, first, last))) do
    notes[#notes + 1] = entries[first + i - 1]
    notes[#notes + 1] = note
  end
end
local ends = redis.call('PEXPIRETIME', task)
if ends > 0 then redis.call('PEXPIREAT', journal, ends) end
return { 'OK', notes, tonumber(redis.call('HGET', journal, 'entries') or 0) }
