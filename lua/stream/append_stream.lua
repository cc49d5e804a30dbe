-- Append a row to a stream, or close it, or both, once per call. Checked in this order: closed, content
-- type, producer, sequence.
-- KEYS info  hash: see create_stream
-- KEYS rows  stream: data; entry <n>-<ms>
-- ARGV channel        channel: place of the newest row
-- ARGV content_type   of the row; '' without a row
-- ARGV seq            the writer's sequence; '' for none
-- ARGV producer       id; '' for none
-- ARGV epoch          int: the producer's
-- ARGV number         int: of the batch in its epoch
-- ARGV closing        flag: close the stream
-- ARGV max_rows       int: count, 0 for no limit
-- ARGV max_bytes      int: of all rows, 0 for no limit
-- ARGV max_producers  int: count
-- ARGV data           of the row; '' for none
-- Returns
--   {'OK', last, closed}               place of the newest row; 1 if the stream is closed
--   {'COUNTED', last, closed, number}  the producer had sent this; its highest number
--   {'MISSING'}                        there is no such stream
--   {'DENIED'}                         it was deleted, and its forks are kept
--   {'HELD', last}                     it is closed
--   {'TAKEN', type}                    its rows have this content type
--   {'LOST', epoch}                    the producer has begun this epoch
--   {'REFUSED', what}                  an epoch begins at number 0
--   {'GAP', what, expected}            the producer's next number is this
--   {'STALE', seq}                     the newest sequence is this
--   {'FULL'}                           there are too many producers
-- Emits the newest place on channel
-- @include now_text
-- @include stream_above
-- @include stream_keep
-- @include stream_named
-- @include stream_producer
-- @include stream_put
-- @include stream_trim
-- @once
-- @lasting

local stream, mark = stream_named(info), string.format('%.0f %.0f', epoch, number)
if not stream then return { 'MISSING' } end
if stream.state == 'deleted' then return { 'DENIED' } end
if stream.closed then
  if producer ~= '' and stream.closer == mark .. ' ' .. producer then
    return { 'COUNTED', stream.last, 1, string.format('%.0f', number) }
  end
  if producer == '' and data == '' then return { 'OK', stream.last, 1 } end
  return { 'HELD', stream.last }
end
if data ~= '' and content_type ~= stream.type then return { 'TAKEN', stream.type } end
local field = 'p:' .. producer
if producer ~= '' then
  local refused = stream_producer(info, field, epoch, number, stream.last, 0)
  if refused then return refused end
  local count = tonumber(redis.call('HGET', info, 'producers'))
  if count >= max_producers and redis.call('HEXISTS', info, field) == 0 then return { 'FULL' } end
end
if seq ~= '' and not stream_above(seq, stream.seq) then return { 'STALE', stream.seq } end

local first, last, bytes = stream.first, stream.last, stream.bytes
if data ~= '' then
  last = stream_put(rows, last, now_text(), data)
  first, bytes = stream_trim(rows, first, bytes + #data, #data, max_rows, max_bytes)
end
if producer ~= '' and redis.call('HSET', info, field, mark) == 1 then redis.call('HINCRBY', info, 'producers', 1) end
redis.call('HSET', info, 'first', first, 'last', last, 'bytes', bytes, 'seq', seq ~= '' and seq or stream.seq)
if closing then redis.call('HSET', info, 'closed', '1', 'closer', producer ~= '' and mark .. ' ' .. producer or '') end
stream_keep(info, rows, stream.life, stream.expires)
redis.pcall('SPUBLISH', channel, last)
return keep_reply({ 'OK', last, closing and 1 or 0 })
