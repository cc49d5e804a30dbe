-- Name the blobs of a scope that have not expired.
-- KEYS expiry  zset: id -> when, in ms
-- Returns
--   {'OK', ids}  the first to expire first
-- @include now_ms

return { 'OK', redis.call('ZRANGEBYSCORE', expiry, string.format('(%.0f', now_ms()), '+inf') }
