-- Write a blob's coming (1) or going (-1) into the totals of its scope and its trace.
-- @include blob_totals
local function blob_book(about, trace, sign, size)
  for _, field in ipairs(trace == '' and { ':' } or { ':', ':' .. trace }) do
    local count, bytes = blob_totals(about, field)
    if count + sign > 0 then
      redis.call('HSET', about, field, string.format('%d %d', count + sign, bytes + sign * size))
    else
      redis.call('HDEL', about, field)
    end
  end
end
