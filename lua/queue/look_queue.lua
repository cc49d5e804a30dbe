-- Return how much waits in a queue, since when, and within which limits.
-- KEYS keys.queue   zset: job id -> when it is due, in ms
-- KEYS keys.claims  zset: task -> when its job was claimed, in ms
-- KEYS keys.flow    hash: paused, limit, per_key, limit:<key>, key_rate, rate:<key>, turn
-- KEYS keys.keyed   zset: key, place and id of each job that has a key, in order
-- ARGV most        int: jobs that are named at most
-- Returns
--   {'OK', now, waiting, later, claimed, settings, first}  the server's time; jobs that are due; that are put off; in
--                    workers' hands; the limits' names and values in turn; the first without a key that are due, each
--                    with its place, which is earlier by its priority
-- @include now_ms

local now = now_ms()
local later = redis.call('ZCOUNT', keys.queue, string.format('(%.0f', now), '+inf')
local waiting = redis.call('ZCARD', keys.queue) - later + redis.call('ZCARD', keys.keyed)
local first = redis.call('ZRANGE', keys.queue, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
return { 'OK', string.format('%.0f', now), waiting, later, redis.call('ZCARD', keys.claims),
  redis.call('HGETALL', keys.flow), first }
