-- Move the clock of a test's namespace on to a time. All else ages with it: what has less of its life left
-- than was skipped is gone. A lease that is held now does not age, because its owner renews it in real time.
-- A repetition finds the time reached.
-- KEYS shift     string: how far the clock is ahead of the server's, in ms
-- KEYS others..  long: strings: or hashes, lists, zsets, streams: all other keys of the namespace that age
-- ARGV until_ms  int: the time to reach
-- Returns
--   {'OK', now}  by the clock that was moved
-- @include now_ms

local now = now_ms()
local by_ms = until_ms - now
if by_ms <= 0 then return { 'OK', now } end
-- As long as a watch list.
redis.call('SET', shift, string.format('%.0f', by_ms + (redis.call('GET', shift) or 0)), 'PX', 34560000000)
for at = others_from, #others do
  -- Of another type it answers with an error, which has none of these.
  local lease = redis.pcall('HMGET', others[at], 'owner', 'expires', 'length')
  local expires, left_ms = tonumber(lease[2] or nil), redis.call('PTTL', others[at])
  if lease[3] and lease[1] ~= '' and expires and expires > now then
    redis.call('HSET', others[at], 'expires', string.format('%.0f', expires + by_ms))
  elseif left_ms > 0 then
    redis.call('PEXPIRE', others[at], string.format('%.0f', math.max(1, left_ms - by_ms)))
  end
end
return { 'OK', until_ms }
