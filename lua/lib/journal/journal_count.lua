-- Count an entry that a run has written to its task's journal, note where the run's lane stands, and
-- return the count. `lane` is empty for a call that moves none.
local function journal_count(journal, lane, state)
  if lane ~= '' then redis.call('HSET', journal, lane, state) end
  return redis.call('HINCRBY', journal, 'entries', 1)
end
