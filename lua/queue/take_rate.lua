-- Take from a rate that all processes share, once per call, and say when it may be used. Places are in the
-- order of the calls. Beside a name, with its score, is the rate that it was last taken by, and when: after
-- another rate, who waits asks again, so at most a period of the new one is taken.
-- KEYS rates      zset: name -> when all of its rate is there again, in ms; with that, <name>\0<rate>\0<now>
-- KEYS settings   hash: name -> rate that was set in place of the callers' own. It may be absent
-- ARGV name       of the rate
-- ARGV rate       how much in which period: a number and ms; what was set comes first
-- ARGV cost       int: how much of it, at most all of a period of the callers' rate
-- ARGV under      the rate by which the caller has a place that has come; '' if it has none
-- Returns
--   {'OK', wait_ms, rate}  it is taken, and may be used in so many ms; by this rate
--   {'OK', wait_ms, ''}    nothing is taken: too many wait. Ask again in so many ms
-- @include now_ms
-- @include flow_rate
-- @include rate_place
-- @once

local now, given = now_ms(), redis.call('HGET', settings, name)
if given then
  rate = given
  -- A smaller rate may have less in a period: then the call takes all of one.
  cost = math.min(cost, tonumber(string.match(rate, '^%d+')))
  redis.call('PEXPIRE', settings, 34560000000)
end
if under == rate then return keep_reply({ 'OK', 0, rate }) end
local wait_ms, full_at, beside = rate_place(rates, name, rate, cost, now)
-- A place further away than a week is given to nobody: the times in `rates` have an end.
if wait_ms > 604800000 then return keep_reply({ 'OK', 604800000, '' }) end
if beside then redis.call('ZREM', rates, beside) end
flow_take(rates, name, full_at, now)
redis.call('ZADD', rates, string.format('%.3f', full_at), string.format('%s\0%s\0%.0f', name, rate, now))
redis.call('PEXPIRE', rates, 1296000000)
return keep_reply({ 'OK', wait_ms, rate })
