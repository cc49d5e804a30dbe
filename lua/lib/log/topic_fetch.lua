-- Fetch the rows of a topic that are still there. Its index may name rows that were trimmed, or
-- that belong to an earlier life of the log: the row itself says whose it is.
local function topic_fetch(rows, topic, numbers)
  local found = {}
  for _, n in ipairs(numbers) do
    local row = redis.call('XRANGE', rows, n, n)[1]
    if row and row[2][4] == topic then found[#found + 1] = row end
  end
  return found
end
