-- Return how a task of a session whose tasks run in turn is in the way of others, nil for one that is terminal,
-- missing or of another kind, though the list may still name it.
local function turn_busy(task)
  local was = redis.call('HMGET', task, 'finished', 'status', 'attempts', 'flow_key', 'order')
  if not was[2] or was[1] == '1' or string.sub(was[4] or '', 1, 2) ~= '1:' then return nil end
  return { status = was[2], begun = was[2] ~= 'PENDING' or tonumber(was[3] or 0) > 0, order = was[5] }
end

-- List a task among those of its session that run in turn, at its place in ms, for so long at least.
-- @include lives
local function turn_put(turn, task_id, place_ms, life_ms)
  redis.call('ZADD', turn, string.format('%.0f', place_ms), task_id)
  lives(turn, math.floor(life_ms))
end
