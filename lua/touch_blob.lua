-- Note that a blob was used, if it is still there.
-- KEYS[1] use      zset: id -> last use, in us
-- ARGV[1] id       of the blob
-- Returns
--   {'OK', noted}  1 if it was there
-- @include blob_used
local use = KEYS[1]
local id = ARGV[1]

if not redis.call('ZSCORE', use, id) then return { 'OK', 0 } end
blob_used(use, id)
return { 'OK', 1 }
