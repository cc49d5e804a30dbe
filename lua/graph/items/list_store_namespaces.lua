-- List the namespaces of items in a shard, in the order of their texts. Entries that have expired are taken
-- out before, some in each call, if the server takes writes: a repetition takes out more.
-- KEYS index     zset: namespace, two zero bytes and key of an item, by name
-- KEYS expiries  zset: entry -> when it is listed no more, in ms and thousandths
-- ARGV start     where to begin, as ZRANGEBYLEX writes it
-- ARGV size      int: namespaces at most
-- ARGV most      int: expired entries that are taken out at most
-- Returns
--   {'OK', swept, namespace, ...}  no namespace while there may be more that have expired
-- @include listing_sweep
-- @include now_ms
-- @include unless_refused
-- @reading

local swept = 0
unless_refused(function() swept = listing_sweep(index, expiries, now_ms(), most) end, 'ZREM', index, '')
local reply, from = { 'OK', swept }, start
if swept == most then return reply end
while #reply <= size + 1 do
  local entry = redis.call('ZRANGEBYLEX', index, from, '+', 'LIMIT', 0, 1)[1]
  if not entry then break end
  local namespace = string.sub(entry, 1, (string.find(entry, '%z%z') or 0) - 1)
  reply[#reply + 1] = namespace
  -- Longer namespaces begin with it and one zero byte.
  from = '[' .. namespace .. '\0\1'
end
return reply
