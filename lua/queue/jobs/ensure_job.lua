-- Ensure that the queue has the job of a task that waits. A job that was claimed is left alone at first:
-- its worker may be about to begin. One that arq's own worker has picked is recorded, with the record's
-- version, in arq's mark, whose value arq never reads: it is given to others if the same is found again.
-- What a claim took of its key's rate is there again, if its task has not begun since. A job whose place is of another
-- priority stays there: only who reads the record again may move it, see `move_job`.
-- A repetition finds what was done.
-- KEYS keys.queue       zset: job id -> when it is due, in ms
-- KEYS keys.claims      zset: task -> when its job was claimed, in ms
-- KEYS keys.flow        hash: limits of the queue, turn
-- KEYS keys.owners      hash: id -> its key and place, held:<task> -> key, later:<id> -> key,
--   parked:<task> -> id and version, took:<task> -> after how many runs it took of its key's rate,
--   of:<task> -> that rate
-- KEYS keys.keyed       zset: line, place and id of each job that has a key, in order
-- KEYS keys.heads       zset: limit key, place and line of each session's line that stands in a limit key's
-- KEYS keys.turns       zset: line -> when it had its turn
-- KEYS keys.holders     zset: line and task of each claim that has a key
-- KEYS keys.waits       zset: line -> when it takes its turn again, in ms
-- KEYS keys.rates       zset: line -> when all of its rate is there again, in ms
-- KEYS payload          string: the job in arq's format
-- KEYS picked           string: arq's own mark of a job that is picked
-- KEYS earlier_payload  string: the job of the run before, which a task that was handed off may have kept
-- ARGV job.channel      on which the queue's workers are woken
-- ARGV job.id           the job's id
-- ARGV job.payload      in arq's format
-- ARGV job.life_ms      int: how long it is kept at least
-- ARGV job.earlier_ms   int: what its priority is worth
-- ARGV job.since_ms     int: since when the task waits; '' for now
-- ARGV job.at_ms        int: when it is due; '' for now
-- ARGV job.key          under which its task is limited, '' for none
-- ARGV earlier          the id of that job
-- ARGV orphan           flag: the task's last run is dead: its claim is over, and its job is of no use
-- ARGV version          of the task's record
-- ARGV patience_ms      int: how long what is claimed is left alone
-- ARGV retired          int: up to when claims of the task have no right to run it, by its record
-- Returns
--   {'OK', state}          WAITS, MISPLACED, CLAIMED, RELEASED or QUEUED
--   {'OK', HELD, claimed}  its claim is a permit, and not retired; when that was made, in ms
-- Emits nothing but a sign of life on the channel
-- @include now_ms
-- @include is_ahead
-- @include claim_void
-- @include flow_is_set
-- @include job_late
-- @include job_shift
-- @include job_put
-- @each

local now = now_ms()
local task, runs = string.match(job.id, '^(.*):(%d+)$')
task = task or job.id
local function has(id, its_payload)
  local placed = redis.call('ZSCORE', keys.queue, id) or redis.call('HGET', keys.owners, id)
  -- It was kept for workers with a version: of a task that has changed since nobody knows which.
  if placed and string.sub(placed, 1, 2) == 'v:' and redis.call('HGET', keys.owners, 'parked:' .. task)
    ~= id .. ' ' .. version then
    redis.call('HDEL', keys.owners, id, 'parked:' .. task)
    redis.call('ZREM', keys.keyed, placed .. '\0' .. id)
    placed = nil
  end
  return placed and redis.call('EXISTS', its_payload) == 1
end
local claimed = tonumber(redis.call('ZSCORE', keys.claims, task) or 0)
local there = has(job.id, payload)
local mark = there and redis.call('GET', picked)
local waits = there and not mark or earlier ~= job.id and not orphan and has(earlier, earlier_payload)
-- A dead run was claimed a lease ago at least: a newer claim is of the run that follows it. One that was made
-- before the clock was set back may be of any age.
local ahead = is_ahead(claimed, now)
local young = claimed > 0 and not ahead and now - claimed < patience_ms
if waits and (claimed == 0 or young) then
  job_late(keys, payload, job, now)
  local own = there and not mark
  local id, its_payload = own and job.id or earlier, own and payload or earlier_payload
  return { 'OK', job_shift(keys, id, its_payload, job.earlier_ms, nil, now) == 0 and 'WAITS' or 'MISPLACED' }
end
if young then return { 'OK', 'CLAIMED' } end
if mark then
  local seen = tonumber(string.match(mark, '^' .. version .. ' (%d+)$'))
  local new = not seen or is_ahead(seen, now)
  if new then redis.call('SET', picked, version .. ' ' .. string.format('%.0f', now), 'XX', 'KEEPTTL') end
  if new or now - seen < patience_ms then return { 'OK', 'CLAIMED' } end
end
-- What the record had then says nothing of a claim that was made since.
if not ahead and is_ahead(retired, now) then retired = 0 end
if claimed > retired and flow_is_set(keys.flow) then return { 'OK', 'HELD', claimed } end
if waits then
  -- Of a run that is over, whose worker died before it ended its claim. The job could not be claimed beside it.
  claim_void(keys, task, runs)
  return { 'OK', 'WAITS' }
end
redis.call('DEL', picked)
claim_void(keys, task, runs)
-- It would only stand in arq's way.
if earlier ~= job.id and redis.call('ZREM', keys.queue, earlier) == 1 then
  redis.call('DEL', earlier_payload)
  redis.call('HDEL', keys.owners, 'later:' .. earlier)
end
job_put(keys, payload, job, now)
return { 'OK', (mark or claimed > 0 and not orphan) and 'RELEASED' or 'QUEUED' }
