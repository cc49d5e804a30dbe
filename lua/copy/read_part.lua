-- Read a part of a key, whatever its type: all of it, if it is small.
-- KEYS key     string: or a hash, list, zset or stream
-- KEYS copied  hash: key -> digest of what was copied to it
-- ARGV after   where the last part ended; empty for the first
-- ARGV limit   int: items, about; a small hash or zset comes whole
-- Returns
--   {'OK', type, left_ms, digest, next, about, items}  left_ms -1: for ever; next: empty behind the
--     last part; about: of a stream, its last id, rows added and highest id deleted
--   {'MISSING', digest}
-- @each
-- @include part_of

local kind, digest = redis.call('TYPE', key).ok, redis.call('HGET', copied, key)
if kind == 'none' then return { 'MISSING', digest } end
local items, next, about = part_of(key, kind, after, limit)
return { 'OK', kind, redis.call('PTTL', key), digest, next, about, items }
