-- The server's clock, in microseconds, and later each time: what a script makes has an order.
-- @include server_time
local given = 0
local function now_us()
  local seconds, micros = server_time()
  given = math.max(given + 1, seconds * 1000000 + micros)
  return given
end
