-- Know the name of a queue for as long as what is put there now may wait. A repetition knows it as long.
-- KEYS names    zset: queue -> until when its jobs may wait, in ms
-- ARGV queue    the queue's name
-- ARGV life_ms  int: how long a job that is due is kept at least
-- ARGV at_ms    int: when the job is due; '' for now
-- Returns
--   {'OK'}
-- @include now_ms
-- @include lives

local now = now_ms()
local left_ms = math.floor(life_ms + math.max(0, (at_ms or now) - now))
redis.call('ZADD', names, 'GT', string.format('%.0f', now + left_ms), queue)
redis.call('ZREMRANGEBYSCORE', names, '-inf', string.format('(%.0f', now))
lives(names, left_ms)
return { 'OK' }
