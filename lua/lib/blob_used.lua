-- Make a blob the one that was used last, even if the server's clock went back.
local function blob_used(use, id)
  local time = redis.call('TIME')
  local last = tonumber(redis.call('ZRANGE', use, -1, -1, 'WITHSCORES')[2] or 0)
  local now_us = math.max(time[1] * 1000000 + time[2], last + 1)
  redis.call('ZADD', use, string.format('%.0f', now_us), id)
end
