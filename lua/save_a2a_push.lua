-- Save or delete a push configuration of an A2A task.
-- KEYS[1] task     hash: an A2A task
-- KEYS[2] push     hash: config_id -> config
-- ARGV[1] config_id  text
-- ARGV[2] config   JSON, '' deletes it
-- Returns
--   {'OK'}       done
--   {'MISSING'}  no such task
local task, push = KEYS[1], KEYS[2]
local config_id, config = ARGV[1], ARGV[2]

local ends = redis.call('PEXPIRETIME', task)
if ends == -2 then return { 'MISSING' } end
if config == '' then
  redis.call('HDEL', push, config_id)
else
  redis.call('HSET', push, config_id, config)
  redis.call('PEXPIREAT', push, ends)
end
return { 'OK' }
