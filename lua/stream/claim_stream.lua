-- Count a stream among those that its creator has, for as long as it may be there.
-- KEYS created  zset: path -> when to look whether it is there, in us; another one with each claim
-- ARGV path     text
-- ARGV ttl_ms   int: until then in ms
-- ARGV most     int: how many there may be; 0 for any number
-- ARGV keep_ms  int: lifetime of the key after this
-- Returns
--   {'OK', mark, new}  counted; its score, and whether it was not before
--   {'FULL'}           there are as many, and this is none of them
-- @include now_us

local held = redis.call('ZSCORE', created, path)
if not held and most > 0 and redis.call('ZCARD', created) >= most then return { 'FULL' } end
local mark = now_us() + ttl_ms * 1000
if held and tonumber(held) == mark then mark = mark + 1 end
local text = string.format('%.0f', mark)
redis.call('ZADD', created, text, path)
redis.call('PEXPIRE', created, keep_ms)
return { 'OK', text, held and 0 or 1 }
