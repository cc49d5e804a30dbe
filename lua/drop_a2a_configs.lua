-- Delete an owner's push configurations of an A2A task: one, or all.
-- KEYS[1] push     hash: name -> number and configuration; '' -> the last number
-- ARGV[1] name     of the one, '' for all
-- Returns
--   {'OK', deleted}
local push = KEYS[1]
local name = ARGV[1]

local deleted = name ~= '' and redis.call('HDEL', push, name) or math.max(redis.call('HLEN', push) - 1, 0)
local left = redis.call('HLEN', push)
if name == '' or left == 1 and redis.call('HEXISTS', push, '') == 1 then redis.call('DEL', push) end
return { 'OK', deleted }
