-- List checkpoints of a namespace whole, the highest id first: rows, the values of their channels, each
-- once, and pending writes. Those behind the one that exceeds a size are left to the next call.
-- KEYS thread      hash: r<place> row, b<name> value of a channel, w<place> writes
-- KEYS order       zset: places, by name
-- ARGV high        where the listing begins, as ZRANGEBYLEX writes it
-- ARGV low         where it ends
-- ARGV size        int: checkpoints at most
-- ARGV most_bytes  int: how much is read before the reply ends
-- Returns
--   {'OK', last, values, found, ...}  the place to list on from, '' at the end; names and values; each: place,
--     row, lines and writes; empty for one not there
-- @include graph_checkpoint

local values, seen, bytes, more = {}, {}, 0, 0
local reply = { 'OK', '', values }
local places = redis.call('ZREVRANGEBYLEX', order, high, low, 'LIMIT', 0, size)
for at, place in ipairs(places) do
  reply[at + 3], more = graph_checkpoint(thread, place, seen, values)
  bytes = bytes + more
  if bytes > most_bytes or at == size then
    reply[2] = place
    break
  end
end
return reply
