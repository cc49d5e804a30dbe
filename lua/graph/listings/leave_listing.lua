-- Take something that was deleted out of a listing, unless it was listed again since. A repetition
-- finds it gone, or under another stamp.
-- KEYS index     zset: entries of this shard, by name
-- KEYS expiries  zset: entry -> when it is listed no more, in ms
-- ARGV entry     its name
-- ARGV stamp     that it was listed with, '' for none
-- Returns
--   {'OK', removed}
-- @include listing_leave

return { 'OK', listing_leave(index, expiries, entry, stamp) }
