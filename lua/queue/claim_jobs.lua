-- Claim the first jobs that are due for one worker, once per call. They leave the queue, and are kept as
-- claimed until the worker ends them or a sweeper finds that it never began.
-- KEYS queue    zset: job id -> when it is due, in ms
-- KEYS claims   zset: task -> when its job was claimed, in ms
-- ARGV limit    int: jobs at most
-- ARGV life_ms  int: how long a claim is remembered at least
-- Returns
--   {'OK', now, id, place, claimed, ...}  the server's time; each job, its place, when it was claimed
-- @include now_ms
-- @include lives
-- @once

local now = now_ms()
local due = redis.call('ZRANGE', queue, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, limit,
  'WITHSCORES')
local reply = { 'OK', string.format('%.0f', now) }
if #due == 0 then return reply end
for i = 1, #due, 2 do
  local id = due[i]
  local task = string.match(id, '^(.*):%d+$') or id
  -- Later than any claim before it, which its worker then no longer ends.
  local claimed = math.max(now, 1 + tonumber(redis.call('ZSCORE', claims, task) or 0))
  redis.call('ZREM', queue, id)
  redis.call('ZADD', claims, string.format('%.0f', claimed), task)
  for _, each in ipairs({ id, due[i + 1], string.format('%.0f', claimed) }) do reply[#reply + 1] = each end
end
-- What was left by workers that died, and by a task that is gone.
redis.call('ZREMRANGEBYSCORE', claims, '-inf', string.format('%.0f', now - life_ms))
lives(claims, life_ms)
return keep_reply(reply)
