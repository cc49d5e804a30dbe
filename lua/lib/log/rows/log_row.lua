-- Write one new row at the end of a log, and publish it. Its id is known first: a server that is full
-- refuses there, before anything is done. What refuses later, a key of another type or a channel
-- without a right to it, undoes the row; so no id is known whose row is not there. `was` is the
-- log's head as it stood, if any, `rest` what follows the row's place in the next, and `index` that of the
-- row's topic. Returns true if the row is in a new stream, which has no lifetime yet.
-- @include log_undo
-- @include topic_index
local function log_row(log, was, rest, n, now, id, row, index)
  local entry, topic, done, is_new = n .. '-' .. now, log.topic, 0, false
  local field, text, block, place = topic ~= '' and topic_field(topic)
  if field then
    text, block, place = topic_with(index, n)
    redis.call('HSET', log.ids, '', entry .. rest, id, n, field, text)
    if block then redis.call('HSET', log.ids, topic_block(topic, place), block) end
  else
    redis.call('HSET', log.ids, '', entry .. rest, id, n)
  end
  -- A log without a head has no rows. Those of one whose head was evicted would refuse the number.
  if not was then redis.call('UNLINK', log.rows) end
  if log.announce ~= false then
    done = redis.pcall('SPUBLISH', log.channel, entry .. string.format(' %d %d ', #id, #topic) .. id .. topic .. row)
  end
  -- A log with a head has a stream, unless that was evicted, or deleted as it was of another type.
  if type(done) ~= 'table' then done = was and redis.pcall('XADD', log.rows, 'NOMKSTREAM', entry, 'id', id, 'topic', topic, 'row', row) end
  if not done then is_new, done = true, redis.pcall('XADD', log.rows, entry, 'id', id, 'topic', topic, 'row', row) end
  if type(done) ~= 'table' then return is_new end
  log_undo(log, was, id, index, place)
  error(done)
end
