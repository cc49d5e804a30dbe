-- Delete a blob and take it out of its scope's books, once per call: the same bytes stored again are a
-- blob of the same id.
-- KEYS[1] blob     hash
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] expiry   zset: id -> when, in ms
-- KEYS[4] use      zset: id -> last use or arrival, in us
-- KEYS[5] about    hash: =<id> -> size and trace; ':' and ':<trace>' -> count and bytes
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] id       of the blob
-- Returns
--   {'OK', deleted, left}  1 if it was there; how many the books still hold
-- @include call_noted
-- @include call_note
-- @include blob_forget
-- @include blob_lives
-- @idempotent
local blob, call, expiry, use, about = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local keep_ms, id = ARGV[1], ARGV[2]

local done = call_noted(call)
if done then return done end
local books = { expiry = expiry, use = use, about = about }
blob_forget(books, id)
blob_lives(books)
return call_note(call, keep_ms, { 'OK', redis.call('UNLINK', blob), redis.call('ZCARD', expiry) })
