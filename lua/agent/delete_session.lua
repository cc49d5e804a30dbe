-- Delete an agent's session, and its places in the listing, once per call.
-- KEYS session     hash: created, tags
-- KEYS index       zset: <tag>:<created>:<id>, by name
-- KEYS expiries    zset: <created>:<id> <tags> -> when it expires in ms
-- ARGV session_id  of the session
-- Returns
--   {'OK', deleted}  1 if there was one
-- @include session_unlist
-- @once
-- @idempotent

local was = redis.call('HMGET', session, 'created', 'tags')
if was[1] then session_unlist(index, expiries, was[1] .. ':' .. session_id .. ' ' .. was[2]) end
return keep_reply({ 'OK', redis.call('UNLINK', session) })
