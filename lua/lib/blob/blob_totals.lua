-- Count and bytes of a scope's blobs, kept in `about` under ':' for all and ':<trace>' for a trace.
local function blob_totals(about, field)
  local count, bytes = string.match(redis.call('HGET', about, field) or '0 0', '(%d+) (%d+)')
  return tonumber(count), tonumber(bytes)
end
