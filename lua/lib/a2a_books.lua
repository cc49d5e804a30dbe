-- The books of an owner's tasks: `index`, `places` and `expiry`.
-- @include a2a_forget
-- @include a2a_members
local function a2a_place(books, id, place, ends)
  a2a_forget(books, id)
  for _, member in ipairs(a2a_members(id, place)) do redis.call('ZADD', books.index, 0, member) end
  redis.call('HSET', books.places, id, place)
  redis.call('ZADD', books.expiry, string.format('%.0f', ends), id)
  local last = tonumber(redis.call('ZRANGE', books.expiry, -1, -1, 'WITHSCORES')[2])
  for _, book in pairs(books) do redis.call('PEXPIREAT', book, string.format('%.0f', last)) end
end

-- Take out what has expired, `most` of it; tell whether there may be more.
local function a2a_sweep(books, now, most)
  local gone = redis.call('ZRANGEBYSCORE', books.expiry, '-inf', string.format('%.0f', now), 'LIMIT', 0, most)
  for _, id in ipairs(gone) do a2a_forget(books, id) end
  return #gone == most
end
