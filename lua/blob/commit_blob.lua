-- Make an uploaded blob one of its scope, evicting what the limits ask for; once per id, and once
-- per call. A blob that is there already only lives longer. What is larger than a limit is refused
-- before the upload.
-- KEYS upload              hash: number -> bytes
-- KEYS blob                hash: number -> bytes, ref, chunks, kept
-- KEYS expiry              zset: id -> when, in ms
-- KEYS use                 zset: id -> last use or arrival, in us
-- KEYS about               hash: =<id> -> size and trace; ':' and ':<trace>' -> count and bytes
-- KEYS reference           hash: version, write, order, document; untouched without a lifetime
-- KEYS references          zset: id -> expiry in us; likewise
-- KEYS victim_blobs..      hashes: the blobs that may be evicted
-- ARGV blob_id             of the blob
-- ARGV ref                 JSON
-- ARGV size                int: bytes
-- ARGV chunks              int: that were uploaded
-- ARGV trace               text, '' for none
-- ARGV ttl_ms              int: milliseconds, 0 to keep
-- ARGV write               id of this call, for the reference
-- ARGV reference_ttl_ms    int: milliseconds, '' to keep no reference
-- ARGV strategy            lru, fifo or none
-- ARGV limits.count        int: of the scope
-- ARGV limits.bytes        int: of the scope
-- ARGV limits.trace_count  int: of the trace
-- ARGV limits.trace_bytes  int: of the trace
-- ARGV victims..           of the victims, in the order of their keys
-- Returns
--   {'OK', ref}         the blob's reference as it was first stored
--   {'AGAIN', id, ...}  not yet: call again with the keys of these, of which some must go
--   {'MISSING'}         the upload is gone, or a part of it
-- @include blob_forget
-- @include blob_keep
-- @include blob_reference
-- @include blob_used
-- @include blob_victims
-- @include now_ms
-- @once

local portion = 200
local books = { expiry = expiry, use = use, about = about }
local index = { key = references, member = blob_id }
local now = string.format('%.0f', now_ms())
local expired = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, portion)
for _, gone in ipairs(expired) do blob_forget(books, gone) end
if #expired == portion then return { 'AGAIN' } end
local known = redis.call('HGET', blob, 'ref')
if known and redis.call('HEXISTS', about, '=' .. blob_id) == 1 then
  redis.call('UNLINK', upload)
  if strategy == 'lru' then blob_used(use, blob_id) end
  blob_keep(books, blob, blob_id, ttl_ms)
  blob_reference(blob, index, reference, known, write, reference_ttl_ms)
  return keep_reply({ 'OK', known })
end
if redis.call('HLEN', upload) ~= chunks then return { 'MISSING' } end
blob_forget(books, blob_id)
local keys = {}
for i, victim in ipairs(victims) do keys[victim] = victim_blobs[i] end
local oldest, needed, fits = {}, 0, true
if strategy ~= 'none' then
  limits.portion, limits.spare = portion, math.min(16 + 2 * #victims, 2 * portion)
  oldest, needed, fits = blob_victims(books, trace, size, limits)
end
for i = 1, needed do
  if not keys[oldest[i]] then return { 'AGAIN', unpack(oldest) } end
end
for i = 1, needed do
  redis.call('UNLINK', keys[oldest[i]])
  blob_forget(books, oldest[i])
end
if not fits then return { 'AGAIN' } end
redis.call('UNLINK', blob)
if chunks > 0 then redis.call('RENAME', upload, blob) end
redis.call('HSET', blob, 'ref', ref, 'chunks', chunks)
redis.call('HSET', about, '=' .. blob_id, string.format('%d ', size) .. trace)
blob_book(about, trace, 1, size)
blob_used(use, blob_id)
blob_keep(books, blob, blob_id, ttl_ms)
blob_reference(blob, index, reference, ref, write, reference_ttl_ms)
return keep_reply({ 'OK', ref })
