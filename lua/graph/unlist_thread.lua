-- Take a thread that is not there out of the listing, unless it was listed again since. A repetition
-- finds it gone, or under another stamp.
-- KEYS index     zset: threads of this shard, by name
-- KEYS expiries  zset: thread -> when it is listed no more, in ms
-- ARGV thread    id
-- ARGV stamp     that it was listed with, '' for none
-- Returns
--   {'OK', removed}

if (redis.call('ZSCORE', expiries, thread) or '') ~= stamp then return { 'OK', 0 } end
redis.call('ZREM', expiries, thread)
return { 'OK', redis.call('ZREM', index, thread) }
