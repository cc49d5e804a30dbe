-- Note that a blob was used, if it is still there and the server takes writes.
-- KEYS use      zset: id -> last use, in us
-- ARGV blob_id  of the blob
-- Returns
--   {'OK', touched}  1 if it was there, and that was recorded
-- @include blob_used
-- @include unless_refused
-- @reading

if not redis.call('ZSCORE', use, blob_id) then return { 'OK', 0 } end
local touched = unless_refused(function() blob_used(use, blob_id) end, 'ZADD', use, 0, blob_id)
return { 'OK', touched and 1 or 0 }
