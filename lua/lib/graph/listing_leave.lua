-- Take an entry out of a listing if it was listed with this stamp, '' for none. Returns how many left.
local function listing_leave(index, expiries, entry, stamp)
  if (redis.call('ZSCORE', expiries, entry) or '') ~= stamp then return 0 end
  redis.call('ZREM', expiries, entry)
  return redis.call('ZREM', index, entry)
end
