-- Write a task's place and its end into the books of its scope, which live as long as their last task.
-- @include a2a_forget
-- @include a2a_members
local function a2a_list(books, id, was, place, ends)
  if was ~= place then
    a2a_forget(books, id)
    for _, member in ipairs(a2a_members(id, place)) do redis.call('ZADD', books.index, 0, member) end
    redis.call('HSET', books.places, id, place)
  end
  redis.call('ZADD', books.expiry, ends, id)
  local last = tonumber(redis.call('ZRANGE', books.expiry, -1, -1, 'WITHSCORES')[2])
  for _, book in pairs(books) do redis.call('PEXPIREAT', book, string.format('%.0f', last)) end
end

-- Take out what has expired, `most` of it; return whether there may be more.
local function a2a_sweep(books, now, most)
  local gone = redis.call('ZRANGEBYSCORE', books.expiry, '-inf', string.format('%.0f', now), 'LIMIT', 0, most)
  for _, id in ipairs(gone) do a2a_forget(books, id) end
  return #gone == most
end
