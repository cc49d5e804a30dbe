-- Move a job that waits to another time: sooner, or later. One that was due and waits in its key's line leaves the
-- line until then. A repetition finds it moved.
-- KEYS keys.queue    zset: job id -> when it is due, in ms
-- KEYS keys.owners   hash: id -> its key and place, later:<id> -> key
-- KEYS keys.keyed    zset: key, place and id of each job that has a key, in order
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
-- @include job_line
-- @include job_since
-- @include lives

local now, key, entry = now_ms(), nil, nil
local at = string.format('%.0f', sooner and at_ms - earlier_ms or at_ms)
if not sooner and at_ms > now then key, entry = job_line(keys.owners, id) end
if key then
  redis.call('ZREM', keys.keyed, entry)
  redis.call('HDEL', keys.owners, id)
  redis.call('HSET', keys.owners, 'later:' .. id, key)
  redis.call('ZADD', keys.queue, at, id)
  job_waits(payload, at_ms)
  for _, each in ipairs({ keys.queue, keys.owners }) do lives(each, math.floor(life_ms + at_ms - now)) end
  return { 'OK', 1 }
end
local moved = redis.call('ZADD', keys.queue, 'XX', sooner and 'LT' or 'GT', 'CH', at, id)
if moved == 1 then job_waits(payload, at_ms) end
if moved == 1 and sooner then redis.pcall('SPUBLISH', keys.channel, '') end
return { 'OK', moved }
