-- Read a shard of a listing by name.
-- KEYS index     zset: entries, by name
-- KEYS expiries  zset: entry -> when it is listed no more, in ms
-- ARGV start     where to begin, as ZRANGEBYLEX writes it
-- ARGV size      int: entries at most
-- Returns
--   {'OK', entry, stamp, ...}  each with what shows whether it was listed again

local reply = { 'OK' }
for _, entry in ipairs(redis.call('ZRANGEBYLEX', index, start, '+', 'LIMIT', 0, size)) do
  reply[#reply + 1] = entry
  reply[#reply + 1] = redis.call('ZSCORE', expiries, entry) or ''
end
return reply
