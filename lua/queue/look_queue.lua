-- Return how much waits in a queue, since when, and within which limits.
-- KEYS keys.queue   zset: job id -> when it is due, in ms
-- KEYS keys.claims  zset: task -> when its job was claimed, in ms
-- KEYS keys.flow    hash: paused, limit, per_key, limit:<key>, key_rate, rate:<key>, turn
-- KEYS keys.keyed   zset: line, place and id of each job that has a key, in order
-- ARGV most         int: jobs that are named at most
-- ARGV most_keys    int: keys whose first job is read at most
-- Returns
--   {'OK', now, waiting, later, claimed, settings, first}  the server's time; jobs that are due; that are put off; in
--                    workers' hands; the limits' names and values in turn; the first that are due, without a key and
--                    of all keys, each with its place, which is earlier by its priority
-- @include now_ms
-- @include keyed_first

local now = now_ms()
local later = redis.call('ZCOUNT', keys.queue, string.format('(%.0f', now), '+inf')
local waiting = redis.call('ZCARD', keys.queue) - later + redis.call('ZCARD', keys.keyed)
local first = redis.call('ZRANGE', keys.queue, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
local heads, key, place, id = {}, '', nil, nil
for _ = 1, most_keys do
  key, place, id = keyed_first(keys.keyed, key)
  if not key then break end
  heads[#heads + 1] = { id, place }
end
table.sort(heads, function(one, other) return tonumber(one[2]) < tonumber(other[2]) end)
for i = 1, math.min(most, #heads) do
  first[#first + 1], first[#first + 2] = heads[i][1], heads[i][2]
end
return { 'OK', string.format('%.0f', now), waiting, later, redis.call('ZCARD', keys.claims),
  redis.call('HGETALL', keys.flow), first }
