-- Note that a blob was used, if it is still there.
-- KEYS use      zset: id -> last use, in us
-- ARGV blob_id  of the blob
-- Returns
--   {'OK', touched}  1 if it was there
-- @include blob_used

if not redis.call('ZSCORE', use, blob_id) then return { 'OK', 0 } end
blob_used(use, blob_id)
return { 'OK', 1 }
