-- List something again that a reader has found, if the server takes writes. A repetition lists it again.
-- KEYS index     zset: entries of this shard, by name
-- KEYS expiries  zset: entry -> when it is listed no more, in ms and thousandths
-- ARGV entry     its name
-- ARGV ttl_ms    int: milliseconds
-- Returns
--   {'OK', renewed}  1 if the server took it
-- @include listing_enter
-- @include unless_refused
-- @lasting
-- @reading

local function renew()
  -- First: behind it a full server lets the rest pass, which as a rule only renews. Else what is listed would outlive
  -- its entry.
  redis.call('PEXPIRE', expiries, ttl_ms, 'GT')
  listing_enter(index, expiries, entry, ttl_ms)
end
return { 'OK', unless_refused(renew, 'ZADD', index, 0, entry) and 1 or 0 }
