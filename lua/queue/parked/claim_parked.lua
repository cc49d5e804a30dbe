-- Claim jobs that wait for a worker with their version, once per call, within the queue's limits. The keys of a
-- lane take turns. A key that may run no more does not hold up others.
-- KEYS keys.queue    zset: job id -> when it is due, in ms
-- KEYS keys.claims   zset: task -> when its job was claimed, in ms
-- KEYS keys.flow     hash: paused, limit, parked, passed: where the last call was, limits of keys, turn
-- KEYS keys.owners   hash: id -> lane, key and place, held:<task> -> key, parked:<task> -> id and version,
--   took:<task> -> after how many runs it took of its key's rate, of:<task> -> that rate
-- KEYS keys.keyed    zset: lane, key, place and id of each job that waits so, in order
-- KEYS keys.heads    zset: limit key, place and line of each session's line that stands in a limit key's
-- KEYS keys.turns    zset: line -> when it had its turn
-- KEYS keys.holders  zset: line and task of each claim that has a key
-- KEYS keys.rates    zset: line -> when all of its rate is there again, in ms
-- ARGV limit         int: jobs at most
-- ARGV life_ms       int: how long a claim is remembered at least
-- ARGV lanes..       handlers and versions that the worker has, as they are kept
-- Returns
--   {'OK', now, parked, more, id, place, claimed, ...}  the server's time; when a job was last kept for others, or
--     claimed so; 1 if more of these lanes are or may be there; each job, its place, when it was claimed
-- @include now_ms
-- @include lane_may
-- @include flow_took
-- @include job_claim
-- @include parked_place
-- @once

local now, set = now_ms(), redis.call('HMGET', keys.flow, 'paused', 'limit', 'parked', 'passed')
local reply = { 'OK', string.format('%.0f', now), set[3] or '', 0 }
if set[2] then limit = math.max(0, math.min(limit, set[2] - redis.call('ZCARD', keys.claims))) end
if set[1] == '1' then limit = 0 end
-- Each key that may not start costs time: the next call goes on behind the last one.
local passed, looked, refused = set[4] or '', 0, { number = 0 }
local function take(lane, member)
  local id = string.match(member, '%z([^%z]+)$')
  local key = string.sub(lane, (string.find(lane, ';', 1, true)) + 1)
  local wait_ms, full_at, rate = lane_may(keys, key, refused, now)
  if wait_ms ~= 0 then return false end
  local line, above = key_lines(key)
  if full_at then flow_take(keys.rates, above or line, full_at, now) end
  redis.call('ZREM', keys.keyed, member)
  redis.call('HDEL', keys.owners, id, 'parked:' .. (string.match(id, '^(.*):%d+$') or id))
  job_claim(keys, reply, now, life_ms, id, string.match(member, '%z([^%z]+)%z'), key ~= '' and key or nil)
  if full_at then flow_took(keys, id, rate) end
  return true
end
for _, lane in ipairs(lanes) do
  -- What has a lane begins with it, and ends before its end with the next character.
  local first, last, got = '[' .. lane, '(' .. string.sub(lane, 1, -2) .. '<', false
  local from = string.sub(passed, 1, #lane) == lane and '(' .. passed .. '\1' or first
  local whole = from == first
  while true do
    if looked == 1000 or refused.number == 32 then
      reply[4] = 1
      break
    end
    looked = looked + 1
    local member = redis.call('ZRANGEBYLEX', keys.keyed, from, last, 'LIMIT', 0, 1)[1]
    if member and limit == 0 then
      reply[4] = 1
      break
    elseif member then
      local its = string.match(member, '^([^%z]+)')
      if take(its, member) then
        limit, got = limit - 1, true
      else
        reply[4] = 1
      end
      passed = its
      from = '(' .. its .. '\1'
    elseif whole and not got then
      break
    else
      from, whole, got = first, true, false
    end
  end
end
-- The next call continues there.
if passed ~= (set[4] or '') then
  redis.call('HSET', keys.flow, 'passed', passed)
  redis.call('PEXPIRE', keys.flow, 34560000000)
end
if not reply[5] then return reply end
reply[3] = parked_place(keys.flow, now)
if redis.call('PTTL', keys.claims) < life_ms then redis.call('PEXPIRE', keys.claims, life_ms) end
return keep_reply(reply)
