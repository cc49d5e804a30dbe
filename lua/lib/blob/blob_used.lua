-- Make a blob the one that was used last, even if the server's clock went back.
-- @include now_us
local function blob_used(use, id)
  local last = tonumber(redis.call('ZRANGE', use, -1, -1, 'WITHSCORES')[2] or 0)
  redis.call('ZADD', use, string.format('%.0f', math.max(now_us(), last + 1)), id)
end
