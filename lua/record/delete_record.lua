-- Delete a record and its place in an index, or only the place if the record is gone already, once per
-- call.
-- KEYS record        hash
-- KEYS index         zset: member -> expiry in us
-- ARGV member        in the index, '' for none
-- ARGV only_if_gone  flag: leave an existing record alone
-- Returns
--   {'OK', deleted}  1 if there was a record and it was deleted
-- @once
-- @idempotent

local there = redis.call('EXISTS', record)
if there == 1 and only_if_gone then return { 'OK', 0 } end
redis.call('DEL', record)
if member ~= '' then redis.call('ZREM', index, member) end
return keep_reply({ 'OK', there })
