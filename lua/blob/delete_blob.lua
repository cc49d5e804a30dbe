-- Delete a blob and take it out of its scope's books, once per call: the same bytes stored again are a
-- blob of the same id.
-- KEYS blob     hash
-- KEYS expiry   zset: id -> when, in ms
-- KEYS use      zset: id -> last use or arrival, in us
-- KEYS about    hash: =<id> -> size and trace; ':' and ':<trace>' -> count and bytes
-- ARGV blob_id  of the blob
-- Returns
--   {'OK', deleted, left}  1 if it was there; how many the books still hold
-- @include blob_forget
-- @include blob_lives
-- @once
-- @idempotent

local books = { expiry = expiry, use = use, about = about }
blob_forget(books, blob_id)
blob_lives(books)
return keep_reply({ 'OK', redis.call('UNLINK', blob), redis.call('ZCARD', expiry) })
