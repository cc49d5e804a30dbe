-- Return the newest `most` numbers of a topic's rows that are between two, descending.
-- @include topic_blocks
local function topic_newest(ids, topic, after, before, most)
  local found, block, oldest, newest = {}, topic_blocks(ids, topic)
  if not block then return found end
  for at = newest, oldest, -1 do
    local numbers = block_numbers(block(at), after)
    for i = #numbers, 1, -1 do
      if #found < most and numbers[i] < before then found[#found + 1] = numbers[i] end
    end
    if #numbers == 0 or #found == most then break end
  end
  return found
end
