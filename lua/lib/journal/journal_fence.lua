-- Refuse a run's write as `fence` does, and also if the server has fewer of the journal's entries
-- than the run knows: its history went back, and the run would continue over a hole. Only runs count
-- entries, and only under the mark's own claim since the run began, so the number is enough here.
-- @include fence
local function journal_fence(lease, mark, journal)
  local lost = fence(lease, mark)
  if lost or mark == '' then return lost end
  local known = tonumber(string.match(mark, '^%d+ (%d*)')) or 0
  local has = tonumber(redis.call('HGET', journal, 'entries') or 0)
  if has < known then return { 'REWOUND', has } end
end
