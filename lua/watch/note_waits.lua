-- Record since when entries of a watch list wait for what cannot be done now. Of two times the first stands.
-- What was taken off the list meanwhile waits for nothing. A repetition does the same.
-- KEYS watch      zset: entry -> when, in ms
-- KEYS since      zset: entry -> since when it waits, in ms
-- ARGV entries..  of the list
-- Returns
--   {'OK', new}  how many did not wait before
-- @include now_ms
-- @include watch_live

local now, new = string.format('%.0f', now_ms()), 0
-- First: behind it a full server lets the rest pass. Else nothing of a round could be settled.
watch_live(since)
for _, entry in ipairs(entries) do
  if redis.call('ZSCORE', watch, entry) then
    new = new + redis.call('ZADD', since, 'NX', now, entry)
  end
end
watch_live(since)
return { 'OK', new }
