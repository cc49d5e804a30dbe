-- The time of a log's row, or of the one before its first; nil if it is not there.
local function log_ms(rows, head, number)
  if number < head.first then return head.before_ms end
  local n = string.format('%.0f', number)
  local row = redis.call('XRANGE', rows, n, n)[1]
  return row and tonumber(string.match(row[1], '-(%d+)'))
end

-- The number and the time of the last row that is not later than `at_ms`, the one before the first
-- included; nil if all are later. Times never fall in a log.
local function log_before(rows, head, at_ms)
  local low, high = head.first - 1, head.last
  if head.before_ms > at_ms then return nil end
  while low < high do
    local middle = math.ceil((low + high) / 2)
    local ms = log_ms(rows, head, middle)
    if ms and ms <= at_ms then low = middle else high = middle - 1 end
  end
  return low, log_ms(rows, head, low)
end
