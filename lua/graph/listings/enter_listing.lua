-- List something for as long as it lives, before and behind its write. A repetition lists it again.
-- KEYS index     zset: entries of this shard, by name
-- KEYS expiries  zset: entry -> when it is listed no more, in ms and thousandths
-- ARGV entry     its name
-- ARGV ttl_ms    int: milliseconds
-- Returns
--   {'OK'}
-- @include listing_enter
-- @lasting

listing_enter(index, expiries, entry, ttl_ms)
return { 'OK' }
