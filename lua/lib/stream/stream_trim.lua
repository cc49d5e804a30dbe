-- Remove the oldest rows beyond the limits, of which an append of `added` bytes removes a bounded slice; the newest
-- stays. Later appends remove the rest: other callers wait for a script, however far a lowered limit is exceeded. A
-- larger append removes more rows, so that a stream of small ones does not outgrow its limit under large ones. Return
-- the place of the last removed, and what is left in bytes.
local function stream_trim(rows, first, bytes, added, max_rows, max_bytes)
  local left, slice, removed = redis.call('XLEN', rows), 256 + math.floor(added / 1024), 0
  while removed < slice and left > 1 and ((max_rows > 0 and left > max_rows) or (max_bytes > 0 and bytes > max_bytes)) do
    local row = redis.call('XRANGE', rows, '-', '+', 'COUNT', 1)[1]
    redis.call('XDEL', rows, row[1])
    first, bytes, left, removed = row[1], bytes - #row[2][2], left - 1, removed + 1
  end
  return first, bytes
end
