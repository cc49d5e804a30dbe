-- Count the writes behind a list. A list has 64 lines at most, so that what a call reads and writes again
-- does not grow with the writes before it.
local GRAPH_LINES = 64
local function graph_writes_more(thread, list, count)
  if count < GRAPH_LINES then return 0 end
  return tonumber(redis.call('HGET', thread, list .. ' more') or 0)
end
