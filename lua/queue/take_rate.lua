-- Take from a rate that all processes share, once per call; or say how long to wait for it.
-- KEYS rates      zset: name -> when all of its rate is there again, in ms
-- KEYS settings   hash: name -> rate that was set in place of the callers' own. It may be absent
-- ARGV name       of the rate
-- ARGV rate       how much in which period: a number and ms; what was set comes first
-- ARGV cost       int: how much of it, at most all of a period of the callers' rate
-- Returns
--   {'OK', wait_ms}  0 if it is taken; else nothing is taken, and it will be there in so many ms
-- @include now_ms
-- @include flow_rate
-- @once

local now, given = now_ms(), redis.call('HGET', settings, name)
if given then
  rate = given
  -- A smaller rate may have less in a period: then the call takes all of one.
  cost = math.min(cost, tonumber(string.match(rate, '^%d+')))
  redis.call('PEXPIRE', settings, 34560000000)
end
local wait_ms, full_at = flow_wait(rates, name, rate, cost, now)
if wait_ms == 0 then flow_take(rates, name, full_at, now) end
return keep_reply({ 'OK', wait_ms })
