-- List the threads of a shard by name.
-- KEYS index     zset: threads, by name
-- KEYS expiries  zset: thread -> when it is listed no more, in ms
-- ARGV start     where the listing begins, as ZRANGEBYLEX writes it
-- ARGV size      int: threads at most
-- Returns
--   {'OK', thread, stamp, ...}  each with what tells whether it was listed again

local reply = { 'OK' }
for _, thread in ipairs(redis.call('ZRANGEBYLEX', index, start, '+', 'LIMIT', 0, size)) do
  reply[#reply + 1] = thread
  reply[#reply + 1] = redis.call('ZSCORE', expiries, thread) or ''
end
return reply
