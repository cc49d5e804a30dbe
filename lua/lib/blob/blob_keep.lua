-- Keep a blob for `ttl_ms` from now, 0 for ever, unless it is kept longer; its books like the last.
-- @include blob_lives
-- @include now_ms
local function blob_keep(books, blob, id, ttl_ms)
  local ends = ttl_ms > 0 and string.format('%.0f', now_ms() + ttl_ms) or '+inf'
  redis.call('ZADD', books.expiry, 'GT', ends, id)
  ends = redis.call('ZSCORE', books.expiry, id)
  if ends == 'inf' then
    redis.call('PERSIST', blob)
  else
    redis.call('PEXPIREAT', blob, string.format('%.0f', ends))
  end
  blob_lives(books)
end
