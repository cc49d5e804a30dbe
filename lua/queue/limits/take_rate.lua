-- Take from a rate that all processes share, once per call, and say when it may be used. Places are in the
-- order of the calls. A rate that was set holds for all: who waits by another one asks again, so at most a period of
-- the new one is taken.
-- KEYS rates      zset: name -> when all of its rate is there again, in ms; with that, what `rates_read` reads
-- KEYS settings   hash: name -> rate that was set in place of the callers' own. It may be absent
-- ARGV name       of the rate
-- ARGV rate       how much in which period: a number and ms; what was set comes first
-- ARGV cost       int: how much of it, at most all of a period of the callers' rate
-- ARGV under      the rate by which the caller has a place that has come; '' if it has none
-- Returns
--   {'OK', wait_ms, rate}  it is taken, and may be used in so many ms; by this rate
--   {'OK', wait_ms, ''}    nothing is taken: too many wait, or by too many rates. Ask again in so many ms
-- @include now_ms
-- @include flow_rate
-- @include rates_read
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
local found, was = rates_read(rates, name, now)
local wait_ms, held, last = rate_place(found, was, rate, cost, now, given)
if not held then return keep_reply({ 'OK', wait_ms, '' }) end
-- A place further away than a week is given to nobody: the times in `rates` have an end.
if wait_ms > 604800000 then return keep_reply({ 'OK', 604800000, '' }) end
for _, each in ipairs(found) do redis.call('ZREM', rates, each.member) end
flow_take(rates, name, last, now)
for _, each in ipairs(held) do
  local full_at = (held[2] or last > each.full_at) and string.format('%.3f:', each.full_at) or ''
  local member = string.format('%s\0%s\0%s%.0f', name, each.rate, full_at, each.at)
  redis.call('ZADD', rates, string.format('%.3f', last), member)
end
redis.call('PEXPIRE', rates, 1296000000)
return keep_reply({ 'OK', wait_ms, rate })
