-- The same clock as text: a log, which writes the time, is spared of formatting it.
local function now_text()
  local time = redis.call('TIME')
  return time[1] .. string.sub('00000' .. time[2], -6, -4)
end
