-- Keep the index of a log's topic: it never outlives its log, always lives `ttl_ms` after its last
-- row, and forgets the rows before `first`.
-- @include topic_search
local function log_topic(log, expires, first)
  redis.call('PEXPIREAT', log.topic_rows, expires)
  if first ~= '1' and tonumber(redis.call('LINDEX', log.topic_rows, 0)) < tonumber(first) then
    redis.call('LTRIM', log.topic_rows, topic_search(log.topic_rows, first - 1), -1)
  end
end
