-- Add items to a copy: those of `given` from a place on.
local function write_items(key, kind, given, from)
  if kind == 'string' then return redis.call('SET', key, given[from]) end
  if kind == 'stream' then
    local at = from
    while at <= #given do
      local words = tonumber(given[at + 1])
      redis.call('XADD', key, given[at], unpack(given, at + 2, at + 1 + words))
      at = at + 2 + words
    end
    return
  end
  local adding = { hash = 'HSET', zset = 'ZADD', list = 'RPUSH' }
  for first = from, #given, 1000 do
    redis.call(adding[kind], key, unpack(given, first, math.min(first + 999, #given)))
  end
end
