-- Drop the oldest rows, a bounded slice at a time, that are too many or too old, with their ids.
-- A little slack above the limit lets one trim serve many appends. The last row read is kept.
-- Tells whether it dropped any.
local function log_trim(log, head, now)
  local max_rows = log.max_rows
  local over = max_rows > 0 and head.last - head.first + 1 > max_rows + math.min(64, math.floor(max_rows / 16))
  local horizon = log.keeps_old and 0 or now - log.ttl_ms
  if not over and head.first_ms >= horizon then return false end
  local keep_from = over and head.last - max_rows + 1 or 0
  local slice = over and math.min(256, keep_from - head.first + 1) or 64
  local gone, entries = {}, redis.call('XRANGE', log.rows, '-', '+', 'COUNT', slice)
  for i, entry in ipairs(entries) do
    if i > 1 then head.before_ms = head.first_ms end
    local n, ms = string.match(entry[1], '(%d+)-(%d+)')
    head.first, head.first_ms = tonumber(n), tonumber(ms)
    if i == #entries or (head.first >= keep_from and head.first_ms >= horizon) then break end
    gone[#gone + 1] = entry[2][2]
  end
  if #gone == 0 then return false end
  redis.call('XTRIM', log.rows, 'MINID', string.format('%.0f', head.first))
  redis.call('HDEL', log.ids, unpack(gone))
  return true
end
