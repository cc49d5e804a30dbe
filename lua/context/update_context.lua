-- Replace parts of a session's context, one number up, if it has the expected one. Once per call: what others
-- write before a repetition stays.
-- KEYS context       hash: version, write, order, number, hash, call, places and the parts given; =<task> -> place and result
-- ARGV expected      number and, after a space, its call; the number alone; 0 for absent, '' for any
-- ARGV call          id of this call; each part given has it as its `:write` among the fields
-- ARGV ttl_ms        int: milliseconds
-- ARGV content_hash  of the parts given, or of an empty context for one that has none yet
-- ARGV hashed        flag: the part that is hashed is given
-- ARGV results..     task and result of each, in turn
-- ARGV fields..      names and values, in turn
-- Returns
--   {'OK', number, hash}  the new number
--   {'STALE', number, call}  it has this number; nothing was written
-- @include record_write
-- @include context_result
-- @include stale
-- @once
-- @idempotent
-- @lasting

local is = redis.call('HMGET', context, 'number', 'hash', 'call')
-- Patches are applied in between: the last write alone would not tell a repeated call.
if is[3] == call then return { 'OK', tonumber(is[1]), is[2] } end
local other = stale(expected, is[1], is[3])
if other then return other end
if not hashed and is[2] then content_hash = is[2] end
local number = string.format('%.0f', tonumber(is[1] or 0) + 1)
local parts = { 'number', number, 'hash', content_hash, 'call', call, unpack(fields) }
record_write(context, { key = '' }, call, ttl_ms, parts)
for i = 1, #results, 2 do context_result(context, results[i], results[i + 1]) end
return keep_reply({ 'OK', tonumber(number), content_hash })
