-- Take something that is not there out of a listing, unless it was listed again since. A repetition
-- finds it gone, or under another stamp.
-- KEYS index     zset: entries of this shard, by name
-- KEYS expiries  zset: entry -> when it is listed no more, in ms
-- ARGV entry     its name
-- ARGV stamp     that it was listed with, '' for none
-- ARGV reader    flag: for one who only reads, and can do without
-- Returns
--   {'OK', removed}
-- @include unless_refused

if (redis.call('ZSCORE', expiries, entry) or '') ~= stamp then return { 'OK', 0 } end
local removed = 0
local function leave()
  redis.call('ZREM', expiries, entry)
  removed = redis.call('ZREM', index, entry)
end
if reader then unless_refused(leave, 'ZREM', index, entry) else leave() end
return { 'OK', removed }
