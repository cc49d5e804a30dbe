-- End the claims of jobs, and put those off that are to run again: a job with a key, too, waits in the queue
-- until then. One of a session whose tasks run in turn stays where it was in its session's line, which waits
-- with it; so does one of a schedule's backfills that run one at a time. A repetition finds the claims gone, and changes nothing. Nor does a worker whose claim was ended by
-- others: they have queued the job, under its key.
-- What a job that has not begun took of its key's rate is there again.
-- KEYS keys.queue    zset: job id -> when it is due, in ms
-- KEYS keys.claims   zset: task -> when its job was claimed, in ms
-- KEYS keys.flow     hash: limits of the queue, turn
-- KEYS keys.owners   hash: id -> its key and place, held:<task> -> key, later:<id> -> key,
--   took:<task> -> after how many runs it took of its key's rate, of:<task> -> that rate
-- KEYS keys.keyed    zset: line, place and id of each job that has a key, in order
-- KEYS keys.heads    zset: limit key, place and line of each session's line that stands in a limit key's
-- KEYS keys.turns    zset: line -> when it had its turn
-- KEYS keys.holders  zset: line and task of each claim that has a key
-- KEYS keys.waits    zset: line -> when it takes its turn again, in ms
-- KEYS keys.rates    zset: line -> when all of its rate is there again, in ms
-- KEYS payloads..    strings: the jobs in arq's format
-- ARGV keys.channel  on which the queue's workers are woken
-- ARGV life_ms       int: how long a job that is put off is kept at least
-- ARGV jobs..        id, when it was claimed, in how many ms it is due again, '' for never, where it was, and
--   1 if it has begun; in turn
-- Returns
--   {'OK', ended}  how many were still claimed by that claim
-- Emits nothing but a sign of life on the channel
-- @include now_ms
-- @include lives
-- @include claim_end
-- @include flow_is_set
-- @include flow_rest
-- @include flow_back
-- @include job_place
-- @include job_since

local now, ended = now_ms(), 0
for i, payload in ipairs(payloads) do
  local id, claimed, again_ms, where, begun = unpack(jobs, 5 * i - 4, 5 * i)
  local place = tonumber(where)
  claimed, again_ms = tonumber(claimed), tonumber(again_ms)
  local task = string.match(id, '^(.*):%d+$') or id
  local mine, key, took, rate = claim_end(keys, task, claimed)
  ended = ended + mine
  if took and begun ~= '1' then flow_back(keys, key, rate) end
  local came = place and place > 0 and place < now
  if not again_ms then
    local waits = redis.call('ZSCORE', keys.queue, id) or redis.call('HEXISTS', keys.owners, id) == 1
    if not waits then redis.call('DEL', payload) end
  elseif mine == 1 and string.find(key or '', '^[1b]:') then
    local new = job_place(keys, id, key, came and where or string.format('%.0f', now), life_ms + again_ms)
    if new == 1 and not came then job_waits(payload, now) end
    if again_ms > 0 then flow_rest(keys, (key_lines(key)), now + again_ms) end
  elseif mine == 1 then
    if key then
      redis.call('HSET', keys.owners, 'later:' .. id, key)
      lives(keys.owners, life_ms + again_ms)
    end
    -- What is handed off goes before what came after it.
    local first = key and again_ms == 0 and came
    local at = first and where or string.format('%.0f', now + again_ms)
    if redis.call('ZADD', keys.queue, 'NX', at, id) == 1 and not first then job_waits(payload, now + again_ms) end
    lives(keys.queue, life_ms + again_ms)
  end
end
-- What a limit held back may begin in any worker.
if ended > 0 and flow_is_set(keys.flow) then redis.pcall('SPUBLISH', keys.channel, '') end
return { 'OK', ended }
