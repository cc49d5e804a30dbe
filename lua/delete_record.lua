-- Delete a record and its place in an index, or only the place if the record is gone already.
-- KEYS[1] record   hash
-- KEYS[2] index    zset: member -> expiry in us
-- ARGV[1] member   in the index, '' for none
-- ARGV[2] only_if_gone  1 to leave an existing record alone
-- Returns
--   {'OK', deleted}  1 if there was a record and it was deleted
local record, index = KEYS[1], KEYS[2]
local member, only_if_gone = ARGV[1], ARGV[2]

local there = redis.call('EXISTS', record)
if there == 1 and only_if_gone == '1' then return { 'OK', 0 } end
redis.call('DEL', record)
if member ~= '' then redis.call('ZREM', index, member) end
return { 'OK', there }
