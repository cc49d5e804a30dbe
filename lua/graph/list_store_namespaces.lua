-- List the namespaces of items in a shard, in the order of their texts.
-- KEYS index  zset: namespace, two zero bytes and key of an item, by name
-- ARGV start  where to begin, as ZRANGEBYLEX writes it
-- ARGV size   int: namespaces at most
-- Returns
--   {'OK', namespace, ...}

local reply, from = { 'OK' }, start
while #reply <= size do
  local entry = redis.call('ZRANGEBYLEX', index, from, '+', 'LIMIT', 0, 1)[1]
  if not entry then break end
  local namespace = string.sub(entry, 1, (string.find(entry, '%z%z') or 0) - 1)
  reply[#reply + 1] = namespace
  -- Longer namespaces begin with it and one zero byte.
  from = '[' .. namespace .. '\0\1'
end
return reply
