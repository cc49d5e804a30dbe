-- Keep a blob's reference as a record of its own, once for each blob. It outlives the blob, which may be evicted.
-- Nothing is kept without a `ttl_ms`.
-- @include record_write
local function blob_reference(blob, index, record, ref, write, ttl_ms)
  if not ttl_ms or redis.call('HSETNX', blob, 'kept', 1) == 0 then return 0 end
  record_write(record, index, write, ttl_ms, { 'document', ref })
  return 1
end
