-- Delete an owner's push configurations of an A2A task: one, or all.
-- KEYS[1] push     hash: owner and name -> number and configuration; '' -> the last number
-- ARGV[1] owner    that the names begin with
-- ARGV[2] name     owner and name of the one, '' for all
-- Returns
--   {'OK', deleted}
local push = KEYS[1]
local owner, name = ARGV[1], ARGV[2]

local deleted = 0
for _, there in ipairs(redis.call('HKEYS', push)) do
  if there ~= '' and string.sub(there, 1, #owner) == owner and (name == '' or name == there) then
    deleted = deleted + redis.call('HDEL', push, there)
  end
end
if redis.call('HLEN', push) == 1 and redis.call('HEXISTS', push, '') == 1 then redis.call('DEL', push) end
return { 'OK', deleted }
