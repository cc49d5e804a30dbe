-- Take pauses that are open no more off the list of all sessions, once per call.
-- KEYS expiries   zset: key of a token -> expiry in us
-- KEYS openings   zset: key of a token -> opening in ms
-- ARGV members..  keys of their tokens
-- Returns
--   {'OK'}
-- @once
-- @idempotent

redis.call('ZREM', expiries, unpack(members))
redis.call('ZREM', openings, unpack(members))
return keep_reply({ 'OK' })
