-- Delete a scope's push configurations of an A2A task, one or all, once per call.
-- KEYS configs  hash: name -> number and configuration; '' -> the last number
-- ARGV name     of the one, '' for all
-- Returns
--   {'OK', deleted}
-- @once
-- @idempotent

local deleted = name ~= '' and redis.call('HDEL', configs, name) or math.max(redis.call('HLEN', configs) - 1, 0)
local left = redis.call('HLEN', configs)
if name == '' or left == 1 and redis.call('HEXISTS', configs, '') == 1 then redis.call('DEL', configs) end
return keep_reply({ 'OK', deleted })
