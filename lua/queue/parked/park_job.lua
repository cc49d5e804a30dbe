-- End the claim of a job whose worker lacks its task's version, and keep the job for a worker that has it: in its
-- place, but where only those find it. Its permit is free, and what it took of its key's rate is there again.
-- Nothing happens if the claim has ended: so a repetition does nothing.
-- KEYS keys.claims   zset: task -> when its job was claimed, in ms
-- KEYS keys.flow     hash: limits of the queue, turn, parked: when a job was last kept for others
-- KEYS keys.owners   hash: id -> lane, key and place, held:<task> -> key, parked:<task> -> id and version,
--   took:<task> -> after how many runs it took of its key's rate, of:<task> -> that rate
-- KEYS keys.keyed    zset: lane, key, place and id of each job that is kept for others, in order
-- KEYS keys.heads    zset: limit key, place and line of each session's line that stands in a limit key's
-- KEYS keys.turns    zset: line -> when it had its turn
-- KEYS keys.holders  zset: line and task of each claim that has a key
-- KEYS keys.rates    zset: line -> when all of its rate is there again, in ms
-- KEYS payload       string: the job in arq's format
-- ARGV keys.channel  on which the queue's workers are woken
-- ARGV id            the job's id
-- ARGV claimed       when it was claimed
-- ARGV place         of the job in the queue: when it was due, in ms
-- ARGV lane          handler and version, between v: and a semicolon
-- ARGV version       int: of the task's record. Only this one waits for the lane
-- ARGV life_ms       int: how long the job is kept at least
-- Returns
--   {'OK', parked}  1 if it was claimed
-- Emits nothing but a sign of life on the channel
-- @include now_ms
-- @include lives
-- @include claim_end
-- @include flow_back
-- @include job_unpark
-- @include parked_place

local task = string.match(id, '^(.*):%d+$') or id
local ended, held, took, rate = claim_end(keys, task, tonumber(claimed))
if ended == 0 then return { 'OK', 0 } end
local key = held or ''
if took then flow_back(keys, key, rate) end
-- What an earlier task of the name left.
job_unpark(keys, task)
local owner = lane .. key .. '\0' .. string.format('%018.4f', tonumber(place))
if redis.call('HSETNX', keys.owners, id, owner) == 1 then
  redis.call('HSET', keys.owners, 'parked:' .. task, id .. string.format(' %.0f', version))
  redis.call('ZADD', keys.keyed, 0, owner .. '\0' .. id)
  for _, each in ipairs({ keys.owners, keys.keyed }) do lives(each, life_ms) end
  if redis.call('EXISTS', payload) == 1 then lives(payload, life_ms) end
end
parked_place(keys.flow, now_ms())
redis.pcall('SPUBLISH', keys.channel, '')
return { 'OK', 1 }
