-- Write one new row at the end of a log, and tell it. Its id is known first: a server that is full
-- refuses there, before anything is done. What refuses later, a key of another type or a channel
-- without a right to it, undoes the row; so no id is known whose row is not there. `was` is the
-- log's head as it stands, if any. Returns the head as it then stands.
local function log_row(log, head, was, id, row, now)
  head.last, head.last_ms = head.last + 1, now
  if head.last == head.first then head.first_ms = now log_text(head) end
  local topic, n, done = log.topic, string.format('%.0f', head.last), 0
  local entry = n .. string.format('-%.0f', now)
  redis.call('HSET', log.ids, '', entry .. head.rest, id, n)
  -- A log without a head has no rows. Those of one whose head was evicted would refuse the number.
  if not was then redis.call('UNLINK', log.rows, log.topic_rows) end
  if topic ~= '' then done = redis.pcall('RPUSH', log.topic_rows, n) end
  if log.announce ~= '0' and type(done) ~= 'table' then
    done = redis.pcall('PUBLISH', log.channel, entry .. ' ' .. #id .. ' ' .. #topic .. ' ' .. id .. topic .. row)
  end
  if type(done) ~= 'table' then done = redis.pcall('XADD', log.rows, entry, 'id', id, 'topic', topic, 'row', row) end
  if type(done) ~= 'table' then return entry .. head.rest end
  -- The old head first: a hash that is empty in between would lose its lifetime.
  if was then redis.call('HSET', log.ids, '', was) end
  redis.call('HDEL', log.ids, id, was and id or '')
  if topic ~= '' then redis.pcall('LREM', log.topic_rows, -1, n) end
  error(done)
end
