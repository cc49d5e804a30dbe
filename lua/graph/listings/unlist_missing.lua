-- Take something that a reader did not find out of a listing, unless it was listed again since, and if the
-- server takes writes. A repetition finds it gone, or under another stamp.
-- KEYS index     zset: entries of this shard, by name
-- KEYS expiries  zset: entry -> when it is listed no more, in ms
-- ARGV entry     its name
-- ARGV stamp     that it was listed with, '' for none
-- Returns
--   {'OK', removed}
-- @include listing_leave
-- @include unless_refused
-- @reading

local removed = 0
local function leave() removed = listing_leave(index, expiries, entry, stamp) end
unless_refused(leave, 'ZREM', index, entry)
return { 'OK', removed }
