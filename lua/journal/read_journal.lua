-- Read a task's journal without the chunks of large results, the ends of children, the published
-- values and the mail, and have it live as long as the task. A long journal is read by several calls.
-- KEYS journal     hash: entry -> JSON, part:<number>:<entry> -> bytes,
--   end:<child> -> JSON, lane:<name> -> JSON, value:<key> -> JSON, versions, entries, values; what
--   send_message and take_message write
-- KEYS task        hash
-- ARGV portion     int: how many entries are fetched at a time
-- ARGV most_bytes  int: no entry more once the notes have so many
-- ARGV names..     long: the entries to read; none to read all
-- Returns
--   {'OK', notes, count, left}  entries that are there and their notes, in turn; how many entries runs have
--     written; the entries that are left for the next call
-- @include journal_names
-- @include journal_portion
-- @include unless_refused
-- @reading

local entries, at = names, names_from
if not entries[at] then entries, at = journal_names(journal), 1 end
local notes, left = journal_portion(journal, entries, at, portion, most_bytes)
local ends = redis.call('PEXPIRETIME', task)
if ends > 0 then
  unless_refused(function() redis.call('PEXPIREAT', journal, ends) end, 'PEXPIREAT', journal, ends)
end
return { 'OK', notes, tonumber(redis.call('HGET', journal, 'entries') or 0), left }
