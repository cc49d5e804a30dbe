-- Let a scope's books live as long as the blob that is kept longest.
local function blob_lives(books)
  local last = redis.call('ZRANGE', books.expiry, -1, -1, 'WITHSCORES')[2]
  if not last then return end
  for _, book in pairs(books) do
    if last == 'inf' then
      redis.call('PERSIST', book)
    else
      redis.call('PEXPIREAT', book, string.format('%.0f', last))
    end
  end
end
