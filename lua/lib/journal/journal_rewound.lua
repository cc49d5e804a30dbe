-- Refuse a run's write if the server has fewer of the journal's entries than the run knows: its
-- history went back, and the run would continue over a hole. Only runs count entries, and only under
-- the mark's own claim since the run began, so the number is enough here.
local function journal_rewound(mark, entries)
  local known = tonumber(string.match(mark, '^%d+ (%d*)')) or 0
  local has = tonumber(entries or 0)
  if has < known then return { 'REWOUND', has } end
end
