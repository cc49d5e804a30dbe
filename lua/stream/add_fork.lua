-- Note a fork at its origin, so that its deletion leaves a mark. A repetition finds the fork there.
-- KEYS info  hash: see create_stream
-- ARGV stream_id  of the stream
-- ARGV fork       id and path of the fork
-- ARGV most       int: forks at most; the oldest is forgotten
-- Returns
--   {'OK'}
--   {'MISSING'}  it is not there any more, or is another one
-- @include stream_named
-- @lasting

local stream = stream_named(info)
if not stream or stream.id ~= stream_id then return { 'MISSING' } end
local forks, count = {}, 0
for known in string.gmatch(stream.forks, '[^\n]+') do
  if known == fork then return { 'OK' } end
  forks[#forks + 1] = known
end
forks[#forks + 1] = fork
count = #forks
redis.call('HSET', info, 'forks', table.concat(forks, '\n', math.max(1, count - most + 1)))
return { 'OK' }
