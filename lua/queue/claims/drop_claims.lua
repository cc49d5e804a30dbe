-- End the claims of tasks that have ended, should their workers have died before they did; and take their jobs
-- away that wait for a worker with their version. A claim that was made since the tasks were inspected stays, and
-- so does all at a repetition. One that was made before the clock was set back is older than any inspection.
-- What a claim took of its key's rate is there again, if its task has not begun since.
-- KEYS keys.claims   zset: task -> when its job was claimed, in ms
-- KEYS keys.flow     hash: limits of the queue, turn, parked
-- KEYS keys.owners   hash: id -> lane, key and place, held:<task> -> key, parked:<task> -> id and version,
--   took:<task> -> after how many runs it took of its key's rate, of:<task> -> that rate
-- KEYS keys.keyed    zset: line, place and id of each job that has a key, in order
-- KEYS keys.heads    zset: limit key, place and line of each session's line that stands in a limit key's
-- KEYS keys.turns    zset: line -> when it had its turn
-- KEYS keys.holders  zset: line and task of each claim that has a key
-- KEYS keys.rates    zset: line -> when all of its rate is there again, in ms
-- ARGV before_ms     int: when the tasks were inspected
-- ARGV tasks..       as claims name them, each with the version that its record had, and its runs, '' for none,
--   in turn
-- Returns
--   {'OK', ended}  how many claims there were
-- @include now_ms
-- @include is_ahead
-- @include claim_void
-- @include job_unpark

local now, ended, parked = now_ms(), 0, redis.call('HEXISTS', keys.flow, 'parked') == 1
for i = 1, #tasks, 3 do
  local task = tasks[i]
  if parked then job_unpark(keys, task, tonumber(tasks[i + 1])) end
  local claimed = tonumber(redis.call('ZSCORE', keys.claims, task) or 0)
  local old = claimed <= before_ms or is_ahead(claimed, now)
  if claimed > 0 and old then ended = ended + claim_void(keys, task, tasks[i + 2], claimed) end
  if claimed == 0 then redis.call('HDEL', keys.owners, 'took:' .. task, 'of:' .. task) end
end
return { 'OK', ended }
