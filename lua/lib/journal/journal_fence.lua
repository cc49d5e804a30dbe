-- Refuse a run's write as `fence` does, and also if the journal has fewer entries than the run knows.
-- @include fence
-- @include journal_rewound
local function journal_fence(lease, mark, journal)
  local lost = fence(lease, mark)
  if lost or mark == '' then return lost end
  return journal_rewound(mark, redis.call('HGET', journal, 'entries'))
end
