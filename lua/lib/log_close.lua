-- Write a log's head back, and prolong its life when less than `ttl_ms` of it is left. A topic's
-- index never outlives its log, always lives `ttl_ms` after its last row, and forgets dropped rows.
-- @include topic_search
local function log_close(log, ttl_ms)
  if log.expires - log.now < ttl_ms then
    log.expires = log.now + ttl_ms + math.floor(ttl_ms / 2)
    redis.call('PEXPIREAT', log.rows, string.format('%.0f', log.expires))
    redis.call('PEXPIREAT', log.ids, string.format('%.0f', log.expires))
  end
  local oldest = log.topic ~= '' and redis.call('LINDEX', log.topic_rows, 0)
  if oldest then
    if tonumber(oldest) < log.first then
      redis.call('LTRIM', log.topic_rows, topic_search(log.topic_rows, log.first - 1), -1)
    end
    redis.call('PEXPIREAT', log.topic_rows, string.format('%.0f', log.expires))
  end
  redis.call('HSET', log.ids, '', string.format('%.0f:%.0f:%.0f:%.0f:%.0f:%.0f',
    log.first, log.first_ms, log.last, log.last_ms, log.expires, log.before_ms))
end
