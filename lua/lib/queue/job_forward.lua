-- Move a job that waits in its key's line to a place that is before its own.
-- @include job_line
local function job_forward(keys, id, place)
  local key, entry = job_line(keys.owners, id)
  local written = string.format('%018.4f', tonumber(place))
  if not key or tonumber(string.match(entry, '%z([^%z]+)%z')) <= tonumber(place) then return end
  redis.call('ZREM', keys.keyed, entry)
  redis.call('ZADD', keys.keyed, 0, key .. '\0' .. written .. '\0' .. id)
  redis.call('HSET', keys.owners, id, key .. '\0' .. written)
end
