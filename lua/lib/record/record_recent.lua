-- The last calls that have saved a record, as `text` has them: write, version and time of each. Return the version of
-- this call if it is one of them; else nil, and the text with it as the one that makes a `version`.
local function record_recent(text, write, version, now)
  local recent = {}
  for id, known, at in string.gmatch(text or '', '([^;]+) (%d+) (%d+);') do
    if id == write then return tonumber(known) end
    -- Ten minutes: no call is repeated for so long.
    if now - at < 600000000 then recent[#recent + 1] = id .. ' ' .. known .. ' ' .. at .. ';' end
  end
  recent[#recent + 1] = write .. string.format(' %.0f %.0f;', version, now)
  if #recent > 16 then table.remove(recent, 1) end
  return nil, table.concat(recent)
end
