-- End the claims of tasks that have ended, should their workers have died before they did. A claim that was
-- made since the tasks were inspected stays, and so does all at a repetition.
-- KEYS keys.claims   zset: task -> when its job was claimed, in ms
-- KEYS keys.flow     hash: limits of the queue, turn
-- KEYS keys.owners   hash: held:<task> -> key
-- KEYS keys.keyed    zset: key, place and id of each job that has a key, in order
-- KEYS keys.turns    zset: key -> when it had its turn
-- KEYS keys.holders  zset: key and task of each claim that has a key
-- ARGV before_ms     int: when the tasks were inspected
-- ARGV tasks..       as claims name them
-- Returns
--   {'OK', ended}  how many claims there were
-- @include claim_end

local ended = 0
for _, task in ipairs(tasks) do
  local claimed = tonumber(redis.call('ZSCORE', keys.claims, task) or 0)
  if claimed > 0 and claimed <= before_ms then ended = ended + claim_end(keys, task, claimed) end
end
return { 'OK', ended }
