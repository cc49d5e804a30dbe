-- Refuse a run's write as `fence` does, and also if the journal has fewer entries than the run knows. A run that knows
-- none does not read the journal: it leaves its task also if that is damaged.
-- @include fence
-- @include journal_rewound
local function journal_fence(lease, mark, journal)
  local lost = fence(lease, mark)
  if lost or not string.find(mark, '^%d+ [1-9]') then return lost end
  return journal_rewound(mark, redis.call('HGET', journal, 'entries'))
end
