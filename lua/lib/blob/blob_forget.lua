-- Take a blob out of its scope's books. Its bytes are another key.
-- @include blob_book
local function blob_forget(books, id)
  redis.call('ZREM', books.expiry, id)
  redis.call('ZREM', books.use, id)
  local known = redis.call('HGET', books.about, '=' .. id)
  if not known then return end
  local size, trace = string.match(known, '(%d+) (.*)')
  redis.call('HDEL', books.about, '=' .. id)
  blob_book(books.about, trace, -1, tonumber(size))
end
