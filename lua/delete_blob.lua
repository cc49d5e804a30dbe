-- Delete a blob and take it out of its scope's books.
-- KEYS[1] blob     hash
-- KEYS[2] expiry   zset: id -> when, in ms
-- KEYS[3] use      zset: id -> last use or arrival, in us
-- KEYS[4] about    hash: =<id> -> size and trace; ':' and ':<trace>' -> count and bytes
-- ARGV[1] id       of the blob
-- Returns
--   {'OK', deleted, left}  1 if it was there; how many the books still hold
-- @include blob_forget
-- @include blob_lives
local blob, expiry, use, about = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id = ARGV[1]

local books = { expiry = expiry, use = use, about = about }
blob_forget(books, id)
blob_lives(books)
return { 'OK', redis.call('UNLINK', blob), redis.call('ZCARD', expiry) }
