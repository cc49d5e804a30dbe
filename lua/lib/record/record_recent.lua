-- The last calls that have saved a record, as `text` has them: write, version and time of each. Return the version of
-- this call if it is one of them; else nil, and the text with it as the one that makes a `version`. Each save runs this.
local function record_recent(text, write, version, now)
  text = text or ''
  local entries = ';' .. text
  local _, found = string.find(entries, ';' .. write .. ' ', 1, true)
  if found then return tonumber(string.match(entries, '^%d+', found + 1)) end
  -- Ten minutes: no call is repeated for so long.
  local last = string.match(string.sub(text, -20), '(%d+);$')
  if last and now - last > 600000000 then text = '' end
  text = text .. write .. string.format(' %.0f %.0f;', version, now)
  -- Sixteen: their versions follow one another.
  if version - string.match(text, ' (%d+)') >= 16 then text = string.sub(text, string.find(text, ';', 1, true) + 1) end
  return nil, text
end
