-- The server's clock in milliseconds, as text: a log, which writes the time, is spared of formatting it.
-- @include server_time
local function now_text()
  local seconds, micros = server_time()
  return seconds .. string.sub('00000' .. micros, -6, -4)
end
