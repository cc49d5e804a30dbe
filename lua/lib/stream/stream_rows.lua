-- Read rows after a place: at most so many, and no more once they have so many bytes.
-- @include stream_number
local function stream_rows(rows, place, most_rows, most_bytes)
  local found, size, some = {}, 0, 1
  while #found < most_rows and size < most_bytes do
    local from = string.format('%.0f', stream_number(place) + 1)
    local next_ones = redis.call('XRANGE', rows, from, '+', 'COUNT', math.min(some, most_rows - #found))
    for _, row in ipairs(next_ones) do
      found[#found + 1], size, place = row, size + #row[2][2], row[1]
    end
    if #next_ones < some then break end
    -- As many as would fit, if they are like those before.
    some = math.max(1, math.min(64, math.floor((most_bytes - size) * #found / math.max(size, 1))))
  end
  return found
end
