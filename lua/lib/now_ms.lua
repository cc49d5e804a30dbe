-- The server's clock, in milliseconds: the only one that decides anything.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
