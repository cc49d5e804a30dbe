-- Take one version out of a task's snapshots, with all its entries; return 1 if it was there.
local function snapshot_forget(rows, index, version)
  local id = redis.call('HGET', rows, version .. ':')
  if not id then return 0 end
  redis.call('HDEL', rows, version, version .. ':')
  redis.call('ZREM', index, 'v:' .. version, 'c:' .. version, 'i:' .. id .. ':' .. version)
  return 1
end
