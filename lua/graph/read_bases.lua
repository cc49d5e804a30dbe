-- Read which values others continue.
-- KEYS thread   hash: b<name> value of a channel
-- ARGV names..  of values of channels
-- Returns
--   {'OK', base, ...}  of each the name of the value that it continues; empty for none
-- @include graph_base

local reply = { 'OK' }
for at, name in ipairs(names) do
  local value = redis.call('HGET', thread, 'b' .. name)
  reply[at + 1] = value and graph_base(value) or ''
end
return reply
