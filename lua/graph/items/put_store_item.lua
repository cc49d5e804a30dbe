-- Put an item of LangGraph's store, in place of one of its name, once per call.
-- KEYS item    hash: value, created, updated, ttl
-- ARGV value   of the item
-- ARGV ttl_ms  int: how long it lives, from now and from each use
-- Returns
--   {'OK'}
-- @include now_ms
-- @once
-- @idempotent
-- @lasting

local now = string.format('%.0f', now_ms())
redis.call('HSETNX', item, 'created', now)
redis.call('HSET', item, 'value', value, 'updated', now, 'ttl', ttl_ms)
redis.call('PEXPIRE', item, ttl_ms)
return keep_reply({ 'OK' })
