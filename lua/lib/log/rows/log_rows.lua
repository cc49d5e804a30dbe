-- Read rows behind a number: at most so many, and no more once they have so many bytes. Then return also 1.
local function log_rows(rows, behind, most, most_bytes)
  local found, size, some = {}, 0, 1
  while #found < most do
    local wanted = math.min(some, most - #found)
    local next_ones = redis.call('XRANGE', rows, string.format('%.0f', behind + 1), '+', 'COUNT', wanted)
    for _, row in ipairs(next_ones) do
      found[#found + 1], size = row, size + #(row[2][6] or '')
    end
    if #next_ones < wanted then break end
    if size >= most_bytes then return found, 1 end
    behind = tonumber(string.match(next_ones[wanted][1], '^%d+'))
    -- As many as would fit, if they are like those before. Eight at most: they may be far larger.
    local fit = math.floor((most_bytes - size) * #found / math.max(size, 1))
    some = math.max(1, math.min(fit, 8))
  end
  return found
end
