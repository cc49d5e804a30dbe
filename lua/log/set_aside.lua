-- Keep a row that could not be read, once, for a person to look at; at most so many of a scope.
-- KEYS unreadable  hash: place -> JSON: reason, row
-- ARGV place       where the row stands
-- ARGV note        JSON
-- ARGV most        int: entries at most
-- ARGV ttl_ms      milliseconds
-- Returns
--   {'OK', new}  1 if it was not there and there was room

if redis.call('HLEN', unreadable) >= most then return { 'OK', 0 } end
local new = redis.call('HSETNX', unreadable, place, note)
redis.call('PEXPIRE', unreadable, ttl_ms)
return { 'OK', new }
