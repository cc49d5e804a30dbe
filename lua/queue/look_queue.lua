-- Return how much waits in a queue, and since when.
-- KEYS queue   zset: job id -> when it is due, in ms
-- KEYS claims  zset: task -> when its job was claimed, in ms
-- Returns
--   {'OK', waiting, claimed, oldest_ms}  jobs that wait or are put off; jobs in workers' hands; for how many
--                    ms the first that is due has been
-- @include now_ms

local now, first = now_ms(), redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
local oldest_ms = first[2] and math.max(0, now - first[2]) or 0
return { 'OK', redis.call('ZCARD', queue), redis.call('ZCARD', claims), string.format('%.0f', oldest_ms) }
