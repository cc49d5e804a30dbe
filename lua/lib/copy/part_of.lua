-- @include stream_about
-- Read a part of a key. Returns its items, where the next part begins, and about a stream what its
-- rows do not say. What is of another type has no items.
local function part_of(key, kind, after, limit)
  local from, more = after == '' and '0' or after, {}
  if kind == 'string' then return { redis.call('GET', key) }, '', more end
  if kind == 'list' then
    local items = redis.call('LRANGE', key, from, from + limit - 1)
    return items, #items == limit and tostring(from + limit) or '', more
  end
  if kind == 'stream' then
    local rows = redis.call('XRANGE', key, after == '' and '-' or '(' .. after, '+', 'COUNT', limit)
    return rows, #rows == limit and rows[limit][1] or '', stream_about(key)
  end
  if kind == 'hash' then more = redis.call('HSCAN', key, from, 'COUNT', limit) end
  if kind == 'zset' then more = redis.call('ZSCAN', key, from, 'COUNT', limit) end
  return more[2] or {}, (more[1] or '0') == '0' and '' or more[1], {}
end
