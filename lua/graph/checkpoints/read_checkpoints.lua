-- Read checkpoints whole: rows, the values of their channels, each once, and pending writes. Those
-- behind the one that exceeds a size are left to the next call.
-- KEYS thread      hash: r<place> row, b<name> value of a channel, w<place> writes
-- KEYS order       zset: places, by name
-- ARGV most_bytes  int: how much is read before the reply ends
-- ARGV places..    of checkpoints; one without an id is the newest of its namespace
-- Returns
--   {'OK', values, found, ...}  names and values; each: place, row, lines and writes; empty for one not there
-- @include graph_checkpoint

local values, seen, size, more = {}, {}, 0, 0
local reply = { 'OK', values }
for at, place in ipairs(places) do
  if string.find(place, ':', 1, true) == #place then
    local highest = '(' .. string.sub(place, 1, -2) .. ';'
    place = redis.call('ZREVRANGEBYLEX', order, highest, '[' .. place, 'LIMIT', 0, 1)[1] or place
  end
  reply[at + 2], more = graph_checkpoint(thread, place, seen, values)
  size = size + more
  if size > most_bytes then break end
end
return reply
