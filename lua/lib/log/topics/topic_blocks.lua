-- A topic's blocks: how to get one, the places of the oldest and the newest, the last number; nil if there are none.
-- @include topic_index
local function topic_blocks(ids, topic)
  local text = redis.call('HGET', ids, topic_field(topic))
  if not text then return nil end
  local last, oldest, newest, block = string.match(text, '^(%d+) (%d+) (%d+) (.+)$')
  newest = tonumber(newest)
  return function(place) return place == newest and block or redis.call('HGET', ids, topic_block(topic, place)) end,
    tonumber(oldest), newest, tonumber(last)
end

-- The numbers of a block that are greater than `after`; all numbers rise.
local function block_numbers(block, after)
  local found, number = {}, 0
  for distance in string.gmatch(block, '%d+') do
    number = number + distance
    if number > after then found[#found + 1] = number end
  end
  return found
end
