-- Read a checkpoint whole: its place, row, names and values that were not seen before, lines and writes.
-- Returns nothing of one that is not there, and how many bytes it has.
-- @include graph_value
-- @include graph_writes
local function graph_checkpoint(thread, place, seen)
  local row = redis.call('HGET', thread, 'r' .. place)
  if not row then return {}, 0 end
  local namespace, values, size = string.match(place, '^[^:]*:'), {}, #row
  local _, head = cmsgpack.unpack_one(row)
  for _, name in ipairs(head[3]) do size = size + graph_value(thread, namespace .. name, seen, values) end
  local writes = graph_writes(thread, place)
  for _, part in ipairs(writes) do size = size + #part end
  return { place, row, values, writes }, size
end
