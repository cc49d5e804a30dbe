-- Return what a queue does and when it is due, as it is at one moment: what moves between its lists is in one of
-- them. For tests that move the clock on; a queue of theirs is small.
-- KEYS keys.queue   zset: job id -> when it is due, in ms
-- KEYS keys.claims  zset: task -> when its job was claimed, in ms
-- KEYS keys.turns   zset: line -> when it had its turn
-- KEYS keys.waits   zset: line -> when its rate lets it start again, in ms
-- KEYS keys.flow    hash: paused
-- Returns
--   {'OK', jobs, claims, turns, waits, paused}  members and scores in turn; 1 if the queue is paused

local reply = { 'OK' }
for _, key in ipairs({ keys.queue, keys.claims, keys.turns, keys.waits }) do
  reply[#reply + 1] = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
end
reply[#reply + 1] = redis.call('HGET', keys.flow, 'paused') == '1' and 1 or 0
return reply
