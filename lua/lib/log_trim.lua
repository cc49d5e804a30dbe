-- Drop the oldest rows, a bounded slice at a time, that are too many or too old, with their ids.
-- A little slack above the limit lets one trim serve many appends. The last row read is kept.
local function log_trim(log, max_rows, ttl_ms)
  local slack = math.min(64, math.floor(max_rows / 16))
  local over = max_rows > 0 and log.last - log.first + 1 > max_rows + slack
  local horizon = log.now - ttl_ms
  if not over and log.first_ms >= horizon then return end
  local keep_from = over and log.last - max_rows + 1 or 0
  local slice = over and math.min(256, keep_from - log.first + 1) or 64
  local gone, entries = {}, redis.call('XRANGE', log.rows, '-', '+', 'COUNT', slice)
  for i, entry in ipairs(entries) do
    if i > 1 then log.before_ms = log.first_ms end
    local n, ms = string.match(entry[1], '(%d+)-(%d+)')
    log.first, log.first_ms = tonumber(n), tonumber(ms)
    if i == #entries or (log.first >= keep_from and log.first_ms >= horizon) then break end
    gone[#gone + 1] = entry[2][2]
  end
  if #gone == 0 then return end
  redis.call('XTRIM', log.rows, 'MINID', string.format('%.0f', log.first))
  redis.call('HDEL', log.ids, unpack(gone))
end
