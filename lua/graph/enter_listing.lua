-- List something for as long as it lives, before and behind its write. Takes up to ten entries that have
-- expired out of the listing. A repetition lists it again.
-- KEYS index     zset: entries of this shard, by name
-- KEYS expiries  zset: entry -> when it is listed no more, in ms and thousandths
-- ARGV entry     its name
-- ARGV ttl_ms    int: milliseconds
-- ARGV reader    flag: for one who has read it, and can do without
-- Returns
--   {'OK'}
-- @include listing_sweep
-- @include now_us
-- @include unless_refused
-- @lasting

local swept, now = 10, now_us() / 1000
local function enter()
  listing_sweep(index, expiries, now, swept)
  -- No two enterings have one stamp, also if the entry was taken out between them.
  local stamp = math.max(now + ttl_ms, tonumber(redis.call('ZSCORE', expiries, entry) or 0) + 1)
  redis.call('ZADD', index, 0, entry)
  redis.call('ZADD', expiries, string.format('%.3f', stamp), entry)
  for _, key in ipairs({ index, expiries }) do
    if redis.call('PTTL', key) < ttl_ms then redis.call('PEXPIRE', key, ttl_ms) end
  end
end
local function renew()
  -- First: behind it a full server lets the rest pass, which as a rule only renews. Else what is listed would outlive
  -- its entry.
  redis.call('PEXPIRE', expiries, ttl_ms, 'GT')
  enter()
end
if reader then unless_refused(renew, 'ZADD', index, 0, entry) else enter() end
return { 'OK' }
