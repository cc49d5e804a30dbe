-- Return the refusal if a document is not at the `expected` version: '' expects any, a number that one,
-- '<number> <mark>' that one of the write or the time `mark`. The server gives a number alone again
-- when its history goes back. `version` and `mark` are the document's, as text; false for an absent one.
local function stale(expected, version, mark)
  version, mark = version or '0', mark or ''
  if expected == '' or expected == version or expected == version .. ' ' .. mark then return nil end
  return { 'STALE', tonumber(version), mark }
end
