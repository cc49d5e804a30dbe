-- The server's clock, in milliseconds.
-- @include server_time
local function now_ms()
  local seconds, micros = server_time()
  return seconds * 1000 + math.floor(micros / 1000)
end
