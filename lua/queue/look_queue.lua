-- Return how much waits in a queue, since when, and within which limits.
-- KEYS keys.queue   zset: job id -> when it is due, in ms
-- KEYS keys.claims  zset: task -> when its job was claimed, in ms
-- KEYS keys.flow    hash: paused, limit, per_key, limit:<key>, key_rate, rate:<key>, turn
-- KEYS keys.keyed   zset: key, place and id of each job that has a key, in order
-- Returns
--   {'OK', waiting, later, claimed, oldest_ms, settings}  jobs that are due; that are put off; in workers' hands;
--                    for how many ms the first without a key has been due; the limits' names and values in turn
-- @include now_ms

local now, first = now_ms(), redis.call('ZRANGE', keys.queue, 0, 0, 'WITHSCORES')
local oldest_ms = first[2] and math.max(0, now - first[2]) or 0
local later = redis.call('ZCOUNT', keys.queue, string.format('(%.0f', now), '+inf')
local waiting = redis.call('ZCARD', keys.queue) - later + redis.call('ZCARD', keys.keyed)
return { 'OK', waiting, later, redis.call('ZCARD', keys.claims), string.format('%.0f', oldest_ms),
  redis.call('HGETALL', keys.flow) }
