-- Save a worker's record, and that it has its handlers now. A repetition finds its write, and writes again that
-- the worker has them.
-- KEYS record       hash: version, write, order, document
-- KEYS index        zset: member -> expiry in us
-- KEYS served       zset: queue and handler -> when a worker last had it, in ms
-- ARGV write        id of this call
-- ARGV ttl_ms       int: milliseconds
-- ARGV member       in the index
-- ARGV document     JSON
-- ARGV remember_ms  int: how long what was served is remembered
-- ARGV most         int: of what was served
-- ARGV names..      queues and handlers that the worker serves
-- Returns
--   {'OK', version}  the new version
-- @include now_ms
-- @include record_write
-- @lasting

local now = now_ms()
for _, name in ipairs(names) do redis.call('ZADD', served, string.format('%.0f', now), name) end
redis.call('ZREMRANGEBYSCORE', served, '-inf', string.format('(%.0f', now - remember_ms))
redis.call('ZREMRANGEBYRANK', served, 0, -1 - most)
if names[1] then redis.call('PEXPIRE', served, remember_ms) end
return { 'OK', record_write(record, { key = index, member = member }, write, ttl_ms, { 'document', document }) }
