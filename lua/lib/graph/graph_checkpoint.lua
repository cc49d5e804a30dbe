-- Read a checkpoint whole: its place, row, lines and writes. Names and values that were not seen before go into
-- a list of them. Returns nothing of one that is not there, and how many bytes it has.
-- @include graph_value
-- @include graph_writes
local function graph_checkpoint(thread, place, seen, values)
  local found = redis.call('HMGET', thread, 'r' .. place, 'w' .. place)
  local row = found[1]
  if not row then return {}, 0 end
  local namespace, size = string.match(place, '^[^:]*:'), #row
  local _, head = cmsgpack.unpack_one(row)
  for _, name in ipairs(head[3]) do size = size + graph_value(thread, namespace .. name, seen, values) end
  local writes = graph_writes(thread, place, nil, found[2] or '')
  for _, part in ipairs(writes) do size = size + #part end
  return { place, row, writes }, size
end
