-- Take back what was written of a row: its id, and its number in the index of its topic, as `was` the log's head and
-- `index` the topic's; `place` is that of a full block that was kept.
-- @include topic_index
local function log_undo(log, was, id, index, place)
  -- The old head first: a hash that is empty in between would lose its lifetime.
  if was then redis.call('HSET', log.ids, '', was) end
  redis.call('HDEL', log.ids, id, was and id or '')
  if place then redis.call('HDEL', log.ids, topic_block(log.topic, place)) end
  if index then
    redis.call('HSET', log.ids, topic_field(log.topic), index)
  else
    redis.call('HDEL', log.ids, topic_field(log.topic))
  end
end
