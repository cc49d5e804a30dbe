-- List something for as long as it lives. Takes up to ten entries that have expired out of the listing.
-- @include listing_sweep
-- @include now_us
local function listing_enter(index, expiries, entry, ttl_ms)
  local swept, now = 10, now_us() / 1000
  listing_sweep(index, expiries, now, swept)
  -- No two enterings have one stamp, also if the entry was taken out between them: each is a microsecond's own.
  local stamp = math.max(now + ttl_ms, tonumber(redis.call('ZSCORE', expiries, entry) or 0) + 0.001)
  redis.call('ZADD', index, 0, entry)
  redis.call('ZADD', expiries, string.format('%.3f', stamp), entry)
  for _, key in ipairs({ index, expiries }) do
    if redis.call('PTTL', key) < ttl_ms then redis.call('PEXPIRE', key, ttl_ms) end
  end
end
