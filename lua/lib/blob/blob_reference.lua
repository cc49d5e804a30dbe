-- Keep a blob's reference as a record of its own, once for each blob. It outlives the blob, which may be evicted.
-- Nothing is kept without a `ttl_ms`. With `again` one that is gone is kept again, as the same record: the blob
-- knows its order.
-- @include record_write
local function blob_reference(blob, index, record, ref, write, ttl_ms, again)
  if not ttl_ms then return 0 end
  local order, was = redis.call('HGET', blob, 'kept'), nil
  if order and not (again and redis.call('EXISTS', record) == 0) then return 0 end
  -- Blobs of earlier versions have 1.
  if order and #order > 1 then was = { false, false, order } end
  -- What an erasure has left is on no list. The archive would take it for the one that was erased.
  if not redis.call('ZSCORE', index.key, index.member) then redis.call('UNLINK', record) end
  record_write(record, index, write, ttl_ms, { 'document', ref }, was)
  redis.call('HSET', blob, 'kept', redis.call('HGET', record, 'order'))
  return 1
end
