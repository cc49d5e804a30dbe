-- Make an uploaded blob one of its scope, evicting what the limits ask for; once per id, and once
-- per call. A blob that is there already only lives longer. What is larger than a limit is refused
-- before the upload.
-- KEYS[1] staging  hash: number -> bytes
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] blob     hash: number -> bytes, ref, chunks
-- KEYS[4] expiry   zset: id -> when, in ms
-- KEYS[5] use      zset: id -> last use or arrival, in us
-- KEYS[6] about    hash: =<id> -> size and trace; ':' and ':<trace>' -> count and bytes
-- KEYS[7..] victims hashes: the blobs that may be evicted
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] id       of the blob
-- ARGV[3] ref      JSON
-- ARGV[4] size     bytes
-- ARGV[5] chunks   that were uploaded
-- ARGV[6] trace    text, '' for none
-- ARGV[7] ttl_ms   milliseconds, 0 to keep
-- ARGV[8] strategy lru, fifo or none
-- ARGV[9] max_count  of the scope
-- ARGV[10] max_bytes  of the scope
-- ARGV[11] max_trace_count  of the trace
-- ARGV[12] max_trace_bytes  of the trace
-- ARGV[13..] ids   of the victims, in the order of their keys
-- Returns
--   {'OK', ref}         the blob's reference as it was first stored
--   {'AGAIN', id, ...}  not yet: call again with the keys of these, of which some must go
--   {'MISSING'}         the upload is gone, or a part of it
-- @include call_noted
-- @include call_note
-- @include blob_forget
-- @include blob_keep
-- @include blob_used
-- @include blob_victims
-- @include now_ms
local staging, call, blob, expiry, use, about = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local victims = { unpack(KEYS, 7) }
local keep_ms, id, ref, size, chunks = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local trace, ttl_ms, strategy = ARGV[6], tonumber(ARGV[7]), ARGV[8]
local limits = { count = tonumber(ARGV[9]), bytes = tonumber(ARGV[10]) }
limits.trace_count, limits.trace_bytes = tonumber(ARGV[11]), tonumber(ARGV[12])
local ids = { unpack(ARGV, 13) }

local done = call_noted(call)
if done then return done end
local portion = 200
local books = { expiry = expiry, use = use, about = about }
local now = string.format('%.0f', now_ms())
local expired = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, portion)
for _, gone in ipairs(expired) do blob_forget(books, gone) end
if #expired == portion then return { 'AGAIN' } end
local known = redis.call('HGET', blob, 'ref')
if known and redis.call('HEXISTS', about, '=' .. id) == 1 then
  redis.call('UNLINK', staging)
  if strategy == 'lru' then blob_used(use, id) end
  blob_keep(books, blob, id, ttl_ms)
  return call_note(call, keep_ms, { 'OK', known })
end
if redis.call('HLEN', staging) ~= chunks then return { 'MISSING' } end
blob_forget(books, id)
local keys = {}
for i, victim in ipairs(ids) do keys[victim] = victims[i] end
local oldest, needed, fits = {}, 0, true
if strategy ~= 'none' then
  limits.portion, limits.spare = portion, math.min(16 + 2 * #ids, 2 * portion)
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
if chunks > 0 then redis.call('RENAME', staging, blob) end
redis.call('HSET', blob, 'ref', ref, 'chunks', chunks)
redis.call('HSET', about, '=' .. id, string.format('%d ', size) .. trace)
blob_book(about, trace, 1, size)
blob_used(use, id)
blob_keep(books, blob, id, ttl_ms)
return call_note(call, keep_ms, { 'OK', ref })
