-- Move a job that waits to another time: sooner, or later. One that was due, and waits in its key's line or for a
-- worker with its version, leaves there until then. A repetition finds it moved.
-- KEYS keys.queue    zset: job id -> when it is due, in ms
-- KEYS keys.owners   hash: id -> its lane, key and place, later:<id> -> key, parked:<task> -> id and version
-- KEYS keys.flow     hash: turn
-- KEYS keys.keyed    zset: lane, key, place and id of each job that has a key or a lane, in order
-- KEYS keys.heads    zset: limit key, place and line of each session's line that stands in a limit key's
-- KEYS keys.turns    zset: line -> when it had its turn
-- KEYS keys.waits    zset: line -> when it takes its turn again, in ms
-- KEYS payload       string: the job in arq's format
-- ARGV keys.channel  on which the queue's workers are woken
-- ARGV id            the job's id
-- ARGV at_ms         int: when its task is due
-- ARGV earlier_ms    int: what its priority is worth if it is due
-- ARGV sooner        flag: sooner than it was, else later
-- ARGV life_ms       int: how long it is kept at least once it is due
-- Returns
--   {'OK', moved}  1 if it waited there and is moved
-- Emits nothing but a sign of life on the channel
-- @include now_ms
-- @include job_since
-- @include lives
-- @include line_again

local now, at = now_ms(), string.format('%.0f', sooner and at_ms - earlier_ms or at_ms)
local owner = not sooner and at_ms > now and redis.call('HGET', keys.owners, id)
if owner then
  local key = string.match(owner, '^v:[^;]*;([^%z]*)%z') or string.match(owner, '^([^%z]*)%z')
  redis.call('ZREM', keys.keyed, line_member(owner, id))
  redis.call('HDEL', keys.owners, id, 'parked:' .. (string.match(id, '^(.*):%d+$') or id))
  local line = string.match(owner, '^(1:[^;%z]*)')
  if line then line_again(keys, line) end
  if key ~= '' then redis.call('HSET', keys.owners, 'later:' .. id, key) end
  redis.call('ZADD', keys.queue, at, id)
  job_waits(payload, at_ms)
  for _, each in ipairs({ keys.queue, keys.owners }) do lives(each, math.floor(life_ms + at_ms - now)) end
  return { 'OK', 1 }
end
local moved = redis.call('ZADD', keys.queue, 'XX', sooner and 'LT' or 'GT', 'CH', at, id)
if moved == 1 then job_waits(payload, at_ms) end
if moved == 1 and sooner then redis.pcall('SPUBLISH', keys.channel, '') end
return { 'OK', moved }
