-- Remove the oldest rows beyond the limits; the newest stays. Return the place of the last removed, and
-- what is left in bytes.
local function stream_trim(rows, first, bytes, max_rows, max_bytes)
  local left = redis.call('XLEN', rows)
  while left > 1 and ((max_rows > 0 and left > max_rows) or (max_bytes > 0 and bytes > max_bytes)) do
    local row = redis.call('XRANGE', rows, '-', '+', 'COUNT', 1)[1]
    redis.call('XDEL', rows, row[1])
    first, bytes, left = row[1], bytes - #row[2][2], left - 1
  end
  return first, bytes
end
