-- Drop the oldest rows, a bounded slice at a time, that are too many, if they are over the limit, or
-- too old, with their ids and their places in the indexes of topics. The last row read is kept. `text` is the
-- log's head. The server's `now` says what is too old, as a row's time may be ahead of it. No row is in a log that
-- is held.
-- @include log_head
-- @include topic_trim
local function log_trim(log, text, over, now)
  local head = log_head(text)
  local horizon = (log.keeps_old or head.held) and 0 or now - log.ttl_ms
  local keep_from = over and head.last - log.max_rows + 1 or 0
  local slice = over and math.min(256, keep_from - head.first + 1) or 64
  local gone, topics, entries = {}, {}, redis.call('XRANGE', log.rows, '-', '+', 'COUNT', slice)
  for i, entry in ipairs(entries) do
    if i > 1 then head.before_ms = head.first_ms end
    local n, ms = string.match(entry[1], '(%d+)-(%d+)')
    head.first, head.first_ms = tonumber(n), tonumber(ms)
    if i == #entries or (head.first >= keep_from and head.first_ms >= horizon) then break end
    gone[#gone + 1], topics[entry[2][4]] = entry[2][2], true
  end
  if #gone == 0 then return end
  redis.call('XTRIM', log.rows, 'MINID', string.format('%.0f', head.first))
  redis.call('HDEL', log.ids, unpack(gone))
  redis.call('HSET', log.ids, '', log_text(head))
  topic_trim(log.ids, topics, head.first)
end
