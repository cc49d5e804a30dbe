-- Take something that is not there out of a listing, unless it was listed again since. A repetition
-- finds it gone, or under another stamp.
-- KEYS index     zset: entries of this shard, by name
-- KEYS expiries  zset: entry -> when it is listed no more, in ms
-- ARGV entry     its name
-- ARGV stamp     that it was listed with, '' for none
-- Returns
--   {'OK', removed}

if (redis.call('ZSCORE', expiries, entry) or '') ~= stamp then return { 'OK', 0 } end
redis.call('ZREM', expiries, entry)
return { 'OK', redis.call('ZREM', index, entry) }
