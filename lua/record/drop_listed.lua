-- Delete a record, and its place in several indexes, once per call.
-- KEYS record     hash
-- KEYS indexes..  zset: member -> expiry in us; may be absent
-- ARGV member     in the indexes
-- Returns
--   {'OK', deleted}  1 if there was one
-- @once
-- @idempotent

local there = redis.call('DEL', record)
for _, index in ipairs(indexes) do redis.call('ZREM', index, member) end
return keep_reply({ 'OK', there })
