-- Take a task out of its owner's books.
-- @include a2a_members
local function a2a_forget(books, id)
  local place = redis.call('HGET', books.places, id)
  if place then redis.call('ZREM', books.index, unpack(a2a_members(id, place))) end
  redis.call('HDEL', books.places, id)
  redis.call('ZREM', books.expiry, id)
end
