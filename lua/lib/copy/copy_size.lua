-- Count the items of a copy.
local function copy_size(key, kind)
  if kind == 'hash' then return redis.call('HLEN', key) end
  if kind == 'list' then return redis.call('LLEN', key) end
  if kind == 'zset' then return redis.call('ZCARD', key) end
  if kind == 'stream' then return redis.call('XLEN', key) end
  return redis.call('EXISTS', key)
end
