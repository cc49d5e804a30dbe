-- Take a member out of an index, unless it was listed again since its expiry was read. A repetition finds it
-- gone, or with another expiry.
-- KEYS index   zset: member -> expiry in us
-- ARGV member  text
-- ARGV expiry  as it was read
-- Returns
--   {'OK', removed}

if redis.call('ZSCORE', index, member) ~= expiry then return { 'OK', 0 } end
return { 'OK', redis.call('ZREM', index, member) }
