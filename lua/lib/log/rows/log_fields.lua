-- Read what a log keeps for a row to come: its head, the number of the row of this id, the index of its topic; false
-- for what is not there.
-- @include topic_index
local function log_fields(log, id)
  if log.topic == '' then return redis.call('HMGET', log.ids, '', id) end
  return redis.call('HMGET', log.ids, '', id, topic_field(log.topic))
end
