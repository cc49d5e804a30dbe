-- Append the update that announces a task's move to its session's log; returns as log_append does.
-- `announcement` is a log with the update's row_id and row, or with updates: ids and rows, in turn.
-- @include log_append
local function announce(announcement, topic, now)
  announcement.topic = topic
  return log_append(announcement, announcement.row_id, announcement.row, now)
end

-- Append all of its updates.
local function announce_all(announcement, topic, now)
  announcement.topic = topic
  local updates = announcement.updates
  for i = 1, #updates, 2 do log_append(announcement, updates[i], updates[i + 1], now) end
end
