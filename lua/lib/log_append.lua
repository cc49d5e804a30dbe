-- Add one row unless its id is there; return its number and 1 if it is new. `log` is a log_head
-- with rows, ids, topic_rows, channel, topic, announce and now.
local function log_append(log, id, row)
  local known = redis.call('HGET', log.ids, id)
  if known then return tonumber(known), 0 end
  local n = string.format('%.0f', log.last + 1)
  local entry = n .. string.format('-%.0f', log.now)
  -- First what the server may refuse: writing, when it is full, and then telling, for want of rights.
  -- So nothing is left half written, and nothing is told that was not.
  if log.announce == '1' then
    if log.last == 0 then redis.call('HSETNX', log.ids, '', '') redis.call('PEXPIRE', log.ids, 60000)
    else redis.call('HSET', log.ids, '', log.text) end
    redis.call('PUBLISH', log.channel, string.format('%s %d %d ', entry, #id, #log.topic) .. id .. log.topic .. row)
  end
  -- A log without a head has no rows. Those of one whose head was evicted would refuse the number.
  if log.last == 0 then redis.call('UNLINK', log.rows, log.topic_rows) end
  if log.topic ~= '' then redis.call('RPUSH', log.topic_rows, n) end
  redis.call('XADD', log.rows, entry, 'id', id, 'topic', log.topic, 'row', row)
  redis.call('HSET', log.ids, id, n)
  log.last, log.last_ms = log.last + 1, log.now
  if log.last == log.first then log.first_ms = log.now end
  return log.last, 1
end
