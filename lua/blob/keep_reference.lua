-- Keep the reference of a blob that was made without one. A repetition finds it kept.
-- KEYS blob        hash: number -> bytes, ref, chunks, kept
-- KEYS reference   hash: version, write, order, document
-- KEYS references  zset: id -> expiry in us
-- ARGV blob_id     of the blob
-- ARGV write       id of this call
-- ARGV reference_ttl_ms  int: milliseconds
-- ARGV again       flag: also one that was kept, and has expired
-- Returns
--   {'OK', kept}  1 if it was not kept before, or is again
--   {'MISSING'}   no such blob
-- @include blob_reference
-- @lasting

local ref = redis.call('HGET', blob, 'ref')
if not ref then return { 'MISSING' } end
local index = { key = references, member = blob_id }
return { 'OK', blob_reference(blob, index, reference, ref, write, reference_ttl_ms, again) }
