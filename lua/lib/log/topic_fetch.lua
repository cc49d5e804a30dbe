-- Fetch the rows of a topic that are still there. Its index may name some that were trimmed.
local function topic_fetch(rows, numbers)
  local found = {}
  for _, number in ipairs(numbers) do
    local n = string.format('%.0f', number)
    local row = redis.call('XRANGE', rows, n, n)[1]
    if row then found[#found + 1] = row end
  end
  return found
end
