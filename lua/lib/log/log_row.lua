-- Write one new row at the end of a log, and publish it. Its id is known first: a server that is full
-- refuses there, before anything is done. What refuses later, a key of another type or a channel
-- without a right to it, undoes the row; so no id is known whose row is not there. `was` is the
-- log's head as it stood, if any, and `rest` what follows the row's place in the next.
local function log_row(log, was, rest, n, now, id, row)
  local entry, topic, done = n .. '-' .. now, log.topic, 0
  redis.call('HSET', log.ids, '', entry .. rest, id, n)
  -- A log without a head has no rows. Those of one whose head was evicted would refuse the number.
  if not was then redis.call('UNLINK', log.rows, log.topic_rows) end
  if topic ~= '' then done = redis.pcall('RPUSH', log.topic_rows, n) end
  if log.announce ~= false and type(done) ~= 'table' then
    done = redis.pcall('SPUBLISH', log.channel, entry .. string.format(' %d %d ', #id, #topic) .. id .. topic .. row)
  end
  if type(done) ~= 'table' then done = redis.pcall('XADD', log.rows, entry, 'id', id, 'topic', topic, 'row', row) end
  if type(done) ~= 'table' then return end
  -- The old head first: a hash that is empty in between would lose its lifetime.
  if was then redis.call('HSET', log.ids, '', was) end
  redis.call('HDEL', log.ids, id, was and id or '')
  if topic ~= '' then redis.pcall('LREM', log.topic_rows, -1, n) end
  error(done)
end
