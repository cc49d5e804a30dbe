-- Read which values others continue. Those behind the one that exceeds a size are left to the next call: the
-- server reads each value whole.
-- KEYS thread      hash: b<name> value of a channel
-- ARGV most_bytes  int: how much is read before the reply ends
-- ARGV names..     of values of channels
-- Returns
--   {'OK', base, ...}  of each the name of the value that it continues; empty for none
-- @include graph_base

local reply, bytes = { 'OK' }, 0
for at, name in ipairs(names) do
  local value = redis.call('HGET', thread, 'b' .. name)
  reply[at + 1] = value and graph_base(value) or ''
  bytes = bytes + (value and #value or 0)
  if bytes > most_bytes then break end
end
return reply
