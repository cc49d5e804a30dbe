-- Replace parts of a session's context, one number up, if it has the expected one.
-- KEYS[1] context  hash: version, write, order, number, hash, call, places and the parts given; =<task> -> place and result
-- ARGV[1] expected number and, after a space, its call; the number alone; 0 for absent, '' for any
-- ARGV[2] call     id of this call; each part given has it as its `:write` among the fields
-- ARGV[3] ttl_ms   milliseconds
-- ARGV[4] hash     of the parts given, or of an empty context for one that has none yet
-- ARGV[5] hashed   1 if the part that is hashed is given
-- ARGV[6] results  how many results come first
-- ARGV[7..] fields task and result of each, then names and values, in turn
-- Returns
--   {'OK', number, hash}  the new number
--   {'STALE', number, call}  it has this number; nothing was written
-- @include record_write
-- @include context_result
-- @include stale
local context = KEYS[1]
local expected, call, ttl_ms, hash = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local hashed, results, fields = ARGV[5], tonumber(ARGV[6]), { unpack(ARGV, 7) }

local is = redis.call('HMGET', context, 'number', 'hash', 'call')
-- Patches are applied in between: the last write alone would not tell a repeated call.
if is[3] == call then return { 'OK', tonumber(is[1]), is[2] } end
local other = stale(expected, is[1], is[3])
if other then return other end
if hashed ~= '1' and is[2] then hash = is[2] end
local number = string.format('%.0f', tonumber(is[1] or 0) + 1)
local parts = { 'number', number, 'hash', hash, 'call', call, unpack(fields, 2 * results + 1) }
record_write(context, { key = '' }, call, ttl_ms, parts)
for i = 1, 2 * results, 2 do context_result(context, fields[i], fields[i + 1]) end
return { 'OK', tonumber(number), hash }
