-- Delete an agent's session, and its places in the listing.
-- KEYS[1] session  hash: created, tags
-- KEYS[2] index    zset: <tag>:<created>:<id>, by name
-- KEYS[3] expiries zset: <created>:<id> <tags> -> when it expires in ms
-- ARGV[1] id       of the session
-- Returns
--   {'OK', deleted}  1 if there was one
-- @include session_unlist
local session, index, expiries = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]

local was = redis.call('HMGET', session, 'created', 'tags')
if was[1] then session_unlist(index, expiries, was[1] .. ':' .. id .. ' ' .. was[2]) end
return { 'OK', redis.call('UNLINK', session) }
