-- List checkpoints of a thread, the highest id first, without the values of their channels.
-- KEYS thread  hash: r<place> row
-- KEYS order   zset: places, by name
-- ARGV high    where the listing begins, as ZRANGEBYLEX writes it
-- ARGV low     where it ends
-- ARGV size    int: checkpoints at most
-- Returns
--   {'OK', place, row, ...}  of each; an empty row for one that is not there

local reply = { 'OK' }
for _, place in ipairs(redis.call('ZREVRANGEBYLEX', order, high, low, 'LIMIT', 0, size)) do
  reply[#reply + 1] = place
  reply[#reply + 1] = redis.call('HGET', thread, 'r' .. place) or ''
end
return reply
