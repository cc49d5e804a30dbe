-- Read the tasks that are in a new task's way; nil if the list has other ones than are known. `over` are not in
-- the way any more.
-- @include turn_list
-- @include turn_meet
local function turn_others(turn, policy, others, known, task_id)
  local found = { over = {}, waiting = {}, begun = {} }
  if policy == 'enqueue' then return found end
  local listed = redis.call('ZSCORE', turn, task_id) and 1 or 0
  for i = 1, #known / 3 do
    local id = known[3 * i - 2]
    local place = id ~= task_id and tonumber(redis.call('ZSCORE', turn, id) or nil)
    local busy = place and turn_busy(others[2 * i - 1])
    if busy then turn_meet(found, busy, id, place, i) end
    if place and not busy then found.over[#found.over + 1] = id end
    if place then listed = listed + 1 end
  end
  return (policy == 'reject' and found.first or listed == redis.call('ZCARD', turn)) and found
end
