-- Read checkpoints whole: rows, the values of their channels, each once, and pending writes. Those
-- behind the one that exceeds a size are left to the next call.
-- KEYS thread      hash: r<place> row, b<name> value of a channel, w<place> writes
-- KEYS order       zset: places, by name
-- ARGV most_bytes  int: how much is read before the reply ends
-- ARGV places..    of checkpoints; one that ends with a colon is the newest of its namespace
-- Returns
--   {'OK', found, ...}  each: place, row, names and values, lines and writes; empty for one not there
-- @include graph_writes

local reply, seen, size = { 'OK' }, {}, 0
for _, place in ipairs(places) do
  local namespace = string.match(place, '^[^:]*:')
  if place == namespace then
    local highest = '(' .. string.sub(place, 1, -2) .. ';'
    place = redis.call('ZREVRANGEBYLEX', order, highest, '[' .. place, 'LIMIT', 0, 1)[1] or place
  end
  local row, found = redis.call('HGET', thread, 'r' .. place), {}
  if row then
    local _, head = cmsgpack.unpack_one(row)
    local values, writes = {}, graph_writes(thread, place)
    for _, name in ipairs(head[3]) do
      local whole = namespace .. name
      local value = not seen[whole] and redis.call('HGET', thread, 'b' .. whole)
      seen[whole] = true
      if value then
        values[#values + 1], values[#values + 2] = whole, value
        size = size + #value
      end
    end
    for _, part in ipairs(writes) do size = size + #part end
    size, found = size + #row, { place, row, values, writes }
  end
  reply[#reply + 1] = found
  if size > most_bytes then break end
end
return reply
