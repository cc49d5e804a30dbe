-- Put one chunk of a blob that is being uploaded. An upload that stops is gone after a while.
-- KEYS[1] staging  hash: number -> bytes
-- ARGV[1] number   of the chunk, from 0
-- ARGV[2] bytes    of the chunk
-- ARGV[3] ttl_ms   until an upload that goes no further is dropped
-- Returns
--   {'OK', chunks}  how many there are now
local staging = KEYS[1]
local number, bytes, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

redis.call('HSET', staging, number, bytes)
redis.call('PEXPIRE', staging, ttl_ms)
return { 'OK', redis.call('HLEN', staging) }
