-- Read the newest rows behind a number and before another, '' for none, the newest first: at most so many, and no more
-- once they have so many bytes. Then return also 1.
local function log_newest(rows, after, before, most, most_bytes)
  local found, size, low = {}, 0, string.format('%.0f', after + 1)
  while #found < most do
    local high = before == '' and '+' or string.format('%.0f', before - 1)
    -- Eight at a time, as in log_rows.
    local some = math.min(8, most - #found)
    local next_ones = redis.call('XREVRANGE', rows, high, low, 'COUNT', some)
    for _, row in ipairs(next_ones) do
      found[#found + 1], size = row, size + #(row[2][6] or '')
    end
    if #next_ones < some then break end
    if size >= most_bytes then return found, 1 end
    before = string.match(next_ones[some][1], '^%d+')
  end
  return found
end
