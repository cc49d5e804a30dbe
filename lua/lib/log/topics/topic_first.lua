-- Return the first `most` numbers of a topic's rows that are greater than `after`, ascending.
-- @include topic_blocks
local function topic_first(ids, topic, after, most)
  local found, block, low, high = {}, topic_blocks(ids, topic)
  if not block then return found end
  local newest = high
  -- No number of the blocks before the last one that begins at `after`, or before it, is greater.
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if tonumber(string.match(block(middle), '^%d+')) <= after then low = middle else high = middle - 1 end
  end
  for at = low, newest do
    for _, number in ipairs(block_numbers(block(at), after)) do
      if #found == most then return found end
      found[#found + 1] = number
    end
  end
  return found
end
