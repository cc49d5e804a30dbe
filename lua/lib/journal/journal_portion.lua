-- Read entries of a journal, from place `at` of the list on: no more of them once they have so many bytes. Other callers
-- wait for a script, and for its reply. Return entries that are there and their notes, in turn, and the entries that
-- are left for the next call. So many at a time are fetched as `portion` says.
local function journal_portion(journal, entries, at, portion, most_bytes)
  local notes, left, size = {}, {}, 0
  while at <= #entries and size < most_bytes do
    local last = math.min(at + portion - 1, #entries)
    for i, note in ipairs(redis.call('HMGET', journal, unpack(entries, at, last))) do
      if note then
        notes[#notes + 1], notes[#notes + 2], size = entries[at + i - 1], note, size + #note
      end
    end
    at = last + 1
  end
  for i = at, #entries do left[#left + 1] = entries[i] end
  return notes, left
end
