-- Walk from a checkpoint to its ancestors, and collect the writes of some channels, for each channel up
-- to the nearest ancestor that has a value of it.
-- KEYS thread     hash: r<place> row, b<name> value of a channel, w<place> writes
-- ARGV place      of the checkpoint: namespace and id
-- ARGV most       int: how many ancestors are looked at
-- ARGV channels.. each as a value's name has it, and as a write's line has it
-- Returns
--   {'OK', at, found, ...}  the ancestor to walk on from, '' at the end; of each with anything, the
--     nearest first: lines and writes, channels and names of their values, names and values
-- @include graph_value
-- @include graph_writes

local wanted, channel_of, left, reply = {}, {}, 0, { 'OK', '' }
for at = 1, #channels, 2 do
  wanted[channels[at + 1]], channel_of[channels[at]], left = true, channels[at + 1], left + 1
end
local namespace = string.match(place, '^[^:]*:')
local function parent_of(at)
  local row = redis.call('HGET', thread, 'r' .. at)
  if not row then return nil end
  local _, head = cmsgpack.unpack_one(row)
  return head[1] and namespace .. head[1], head[3]
end
local at, names = parent_of(place), nil
for looked = 1, most + 1 do
  if not at or left == 0 then break end
  if looked > most then
    reply[2] = place
    break
  end
  place = at
  at, names = parent_of(place)
  if not names then break end
  local writes, found, values = graph_writes(thread, place, wanted), {}, {}
  for _, name in ipairs(names) do
    local channel = string.match(name, ' (.*)$')
    local written = channel_of[channel]
    local whole = namespace .. name
    if written and wanted[written] and graph_value(thread, whole, {}, values) > 0 then
      found[#found + 1], found[#found + 2] = channel, whole
      wanted[written], left = nil, left - 1
    end
  end
  if #writes + #found > 0 then reply[#reply + 1] = { writes, found, values } end
end
return reply
