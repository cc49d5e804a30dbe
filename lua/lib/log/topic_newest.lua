-- Return the newest `most` numbers of a topic's rows that are greater than `after`, ascending.
-- @include topic_blocks
local function topic_newest(ids, topic, after, most)
  local found, backwards, block, oldest, newest = {}, {}, topic_blocks(ids, topic)
  if not block then return found end
  for at = newest, oldest, -1 do
    local numbers = block_numbers(block(at), after)
    for i = #numbers, 1, -1 do
      if #backwards < most then backwards[#backwards + 1] = numbers[i] end
    end
    if #numbers == 0 or #backwards == most then break end
  end
  for i = #backwards, 1, -1 do found[#found + 1] = backwards[i] end
  return found
end
