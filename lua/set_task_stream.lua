-- Name another stream as a registered task's. Its life and its events stay as they are.
-- KEYS[1] task     hash: stream
-- ARGV[1] stream   the stream's id
-- Returns
--   {'OK'}       done
--   {'MISSING'}  no such task
local task = KEYS[1]
local stream = ARGV[1]

if redis.call('EXISTS', task) == 0 then return { 'MISSING' } end
redis.call('HSET', task, 'stream', stream)
return { 'OK' }
