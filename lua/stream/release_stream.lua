-- Count a stream no more, if nobody has claimed it since. A repetition changes nothing.
-- KEYS created  zset: see claim_stream
-- ARGV path     text
-- ARGV mark     its score when it was seen to be gone
-- Returns
--   {'OK', removed}

local held = redis.call('ZSCORE', created, path)
if not held or tonumber(held) ~= tonumber(mark) then return { 'OK', 0 } end
return { 'OK', redis.call('ZREM', created, path) }
