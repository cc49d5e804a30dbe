-- Check that reading on from row `after` skips nothing; return the reason if it would. The row's
-- time tells a cursor of this log from one of another log, or of this log's earlier life.
local function log_position(rows, head, after, after_ms)
  if after > head.last then
    -- A log that lost its end has no later rows; one that began anew has.
    return after_ms > 0 and after_ms < head.last_ms and 'foreign' or 'ahead'
  end
  if after < head.first - 1 then return 'trimmed' end
  if after == 0 or after_ms == 0 then return nil end
  local ms = head.before_ms
  if after >= head.first then
    local n = string.format('%.0f', after)
    local row = redis.call('XRANGE', rows, n, n)[1]
    ms = row and tonumber(string.match(row[1], '-(%d+)'))
  end
  if ms ~= after_ms then return 'foreign' end
  return nil
end
