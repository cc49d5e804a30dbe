-- Put one chunk of a blob that is being uploaded. An upload that stops is gone after a while.
-- KEYS upload  hash: number -> bytes
-- ARGV number  of the chunk, from 0
-- ARGV data    of the chunk
-- ARGV ttl_ms  until an upload that goes no further is dropped
-- Returns
--   {'OK', chunks}  how many there are now

redis.call('HSET', upload, number, data)
redis.call('PEXPIRE', upload, ttl_ms)
return { 'OK', redis.call('HLEN', upload) }
