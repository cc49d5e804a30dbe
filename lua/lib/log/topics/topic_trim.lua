-- Take the numbers before `first` out of the indexes of topics, a set of them, that have lost rows. The block in which
-- `first` would stand stays whole: who reads begins behind a row that is there.
-- @include topic_blocks
local function topic_trim(ids, topics, first)
  for topic in pairs(topics) do
    local block, oldest, newest, last = topic_blocks(ids, topic)
    local place = oldest
    while block and place < newest and tonumber(string.match(block(place + 1), '^%d+')) <= first do
      redis.call('HDEL', ids, topic_block(topic, place))
      place = place + 1
    end
    if block and last < first then
      redis.call('HDEL', ids, topic_field(topic))
    elseif block and place > oldest then
      redis.call('HSET', ids, topic_field(topic), string.format('%.0f %.0f %.0f ', last, place, newest) .. block(newest))
    end
  end
end
