-- Read a value and those that it continues, but none that was seen, into a list of names and values.
-- Returns how many bytes they have.
-- @include graph_base
local function graph_value(thread, name, seen, values)
  local size = 0
  while name and not seen[name] do
    seen[name] = true
    local value = redis.call('HGET', thread, 'b' .. name)
    if not value then break end
    values[#values + 1], values[#values + 2] = name, value
    name, size = graph_base(value), size + #value
  end
  return size
end
