-- Delete a stream, once per call. One with living forks leaves a mark, which keeps its path taken.
-- KEYS info  hash: see create_stream
-- KEYS rows  stream: data; entry <n>-<ms>
-- ARGV channel    channel: 'gone'
-- ARGV stream_id  of the stream that is meant
-- ARGV forks      that its caller knows of
-- ARGV keep       flag: some of them live
-- Returns
--   {'OK'}
--   {'MISSING'}  there is no such stream
--   {'AGAIN'}    its forks are others by now
-- Emits 'gone' on channel
-- @include stream_named
-- @once
-- @lasting

local stream = stream_named(info)
if not stream or stream.id ~= stream_id then return { 'MISSING' } end
if stream.forks ~= forks then return { 'AGAIN' } end
redis.call('UNLINK', rows)
if keep then
  -- It names no user: an erasure does not look for it.
  redis.call('HSET', info, 'state', 'deleted', 'bytes', 0, 'creator', '')
else
  redis.call('UNLINK', info)
end
redis.pcall('SPUBLISH', channel, 'gone')
return keep_reply({ 'OK' })
