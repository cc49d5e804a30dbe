-- Read a checkpoint whole: its place, row, names and values that were not seen before, lines and writes.
-- Returns nothing of one that is not there, and how many bytes it has.
-- @include graph_writes
local function graph_checkpoint(thread, place, seen)
  local row = redis.call('HGET', thread, 'r' .. place)
  if not row then return {}, 0 end
  local namespace, values, size = string.match(place, '^[^:]*:'), {}, #row
  local _, head = cmsgpack.unpack_one(row)
  for _, name in ipairs(head[3]) do
    local whole = namespace .. name
    local value = not seen[whole] and redis.call('HGET', thread, 'b' .. whole)
    seen[whole] = true
    if value then
      values[#values + 1], values[#values + 2] = whole, value
      size = size + #value
    end
  end
  local writes = graph_writes(thread, place)
  for _, part in ipairs(writes) do size = size + #part end
  return { place, row, values, writes }, size
end
