-- Move a job that waits in the queue's own list to another time: sooner, or later. A repetition finds it moved.
-- KEYS keys.queue    zset: job id -> when it is due, in ms
-- ARGV keys.channel  on which the queue's workers are woken
-- ARGV id            the job's id
-- ARGV at_ms         int: when it is due
-- ARGV sooner        flag: sooner than it was, else later
-- Returns
--   {'OK', moved}  1 if it waited there and is moved
-- Emits nothing but a sign of life on the channel

local at = string.format('%.0f', at_ms)
local moved = redis.call('ZADD', keys.queue, 'XX', sooner and 'LT' or 'GT', 'CH', at, id)
if moved == 1 and sooner then redis.pcall('SPUBLISH', keys.channel, '') end
return { 'OK', moved }
