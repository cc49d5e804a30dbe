-- Delete what was copied to a key. Only migrations write such a key: a repetition finds none.
-- KEYS key     string: or a hash, list, zset or stream
-- KEYS copied  hash: key -> digest of what was copied to it
-- ARGV digest  that it has
-- Returns
--   {'OK', deleted}  1 if it was there
--   {'LOST'}         another copy was written meanwhile
-- @each

if redis.call('HGET', copied, key) ~= digest then return { 'LOST' } end
redis.call('HDEL', copied, key)
return { 'OK', redis.call('UNLINK', key) }
