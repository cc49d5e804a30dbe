-- Fetch the rows of a topic that are still there. Its index may name some that were trimmed. No more once they have so
-- many bytes, 0 for any number of bytes: then return also 1.
local function topic_fetch(rows, numbers, most_bytes)
  local found, size = {}, 0
  for _, number in ipairs(numbers) do
    if most_bytes > 0 and size >= most_bytes then return found, 1 end
    local n = string.format('%.0f', number)
    local row = redis.call('XRANGE', rows, n, n)[1]
    if row then found[#found + 1], size = row, size + #(row[2][6] or '') end
  end
  return found
end
