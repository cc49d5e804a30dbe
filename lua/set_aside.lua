-- Keep a row that could not be read, once, for a person to look at; at most so many of a scope.
-- KEYS[1] unreadable  hash: place -> JSON: reason, row
-- ARGV[1] place    where the row stands
-- ARGV[2] note     JSON
-- ARGV[3] most     entries at most
-- ARGV[4] ttl_ms   milliseconds
-- Returns
--   {'OK', new}  1 if it was not there and there was room
local unreadable = KEYS[1]
local place, note, most, ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

if redis.call('HLEN', unreadable) >= most then return { 'OK', 0 } end
local new = redis.call('HSETNX', unreadable, place, note)
redis.call('PEXPIRE', unreadable, ttl_ms)
return { 'OK', new }
