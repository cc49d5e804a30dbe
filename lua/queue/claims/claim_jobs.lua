-- Claim the first jobs that are due for one worker, once per call, within the queue's limits. They leave
-- the queue, and are kept as claimed until the worker ends them or a sweeper finds that it never began.
-- Jobs with and without a key take turns, also over calls: a busy worker has one free slot at a time.
-- KEYS keys.queue    zset: job id -> when it is due, in ms
-- KEYS keys.claims   zset: task -> when its job was claimed, in ms
-- KEYS keys.flow     hash: paused, limit, parked, per_key, limit:<key>, key_rate, rate:<key>, turn,
--   keyed: 1 if a job with a key is next
-- KEYS keys.owners   hash: id -> its key and place, held:<task> -> key, later:<id> -> key,
--   took:<task> -> after how many runs it took of its key's rate, of:<task> -> that rate
-- KEYS keys.keyed    zset: line, place and id of each job that has a key, in order
-- KEYS keys.heads    zset: limit key, place and line of each session's line that stands in a limit key's
-- KEYS keys.turns    zset: line -> when it had its turn
-- KEYS keys.holders  zset: line and task of each claim that has a key
-- KEYS keys.waits    zset: line -> when its rate lets it start again, in ms
-- KEYS keys.rates    zset: line -> when all of its rate is there again, in ms
-- ARGV limit         int: jobs at most
-- ARGV life_ms       int: how long a claim is remembered at least
-- Returns
--   {'OK', now, limited, parked, id, place, claimed, ...}  the server's time; 1 if the queue has limits, or had
--     keys; when a job was last kept for workers with its version; each job, its place, when it was claimed
-- @include now_ms
-- @include claim_end
-- @include flow_is_set
-- @include flow_next
-- @include flow_took
-- @include flow_due
-- @include job_claim
-- @once

local now, set = now_ms(), redis.call('HMGET', keys.flow, 'paused', 'limit', 'parked', 'keyed')
local reply = { 'OK', string.format('%.0f', now), flow_is_set(keys.flow) and 1 or 0, set[3] or '' }
-- What was left by workers that died, and by tasks that are gone.
local left = string.format('%.0f', now - life_ms)
for _, task in ipairs(redis.call('ZRANGE', keys.claims, '-inf', left, 'BYSCORE', 'LIMIT', 0, 16)) do
  claim_end(keys, task)
end
-- What holds for a queue lives as long as workers look into it.
if (set[1] or set[2]) and redis.call('PTTL', keys.flow) < 31536000000 then
  redis.call('PEXPIRE', keys.flow, 34560000000)
end
if set[2] then limit = math.min(limit, set[2] - redis.call('ZCARD', keys.claims)) end
if set[1] == '1' or limit <= 0 then return reply end
local due = flow_due(keys, limit, now, life_ms)
local at, plain = 1, set[4] ~= '1'
for _ = 1, limit do
  local member, key, rate
  if not plain or not due[at] then member, key, rate = flow_next(keys, now) end
  if member then
    local place, id = string.match(member, '%z([^%z]+)%z([^%z]+)$')
    job_claim(keys, reply, now, life_ms, id, place, key)
    if rate then flow_took(keys, id, rate) end
  elseif due[at] then
    job_claim(keys, reply, now, life_ms, due[at], due[at + 1])
    at = at + 2
  else
    break
  end
  plain = not plain
end
if not reply[5] then return reply end
local keyed = plain and '0' or '1'
if keyed ~= (set[4] or '0') and redis.call('EXISTS', keys.turns) == 1 then
  redis.call('HSET', keys.flow, 'keyed', keyed)
  redis.call('PEXPIRE', keys.flow, 34560000000)
end
lives(keys.claims, life_ms)
return keep_reply(reply)
