-- End the claims of jobs, and put those off that are to run again. A repetition finds the claims gone;
-- what it puts off again is harmless, because the task's record decides.
-- KEYS queue       zset: job id -> when it is due, in ms
-- KEYS claims      zset: task -> when its job was claimed, in ms
-- KEYS payloads..  strings: the jobs in arq's format
-- ARGV life_ms     int: how long a job that is put off is kept at least
-- ARGV jobs..      id, when it was claimed, and in how many ms it is due again, '' for never; in turn
-- Returns
--   {'OK', ended}  how many were still claimed by that claim
-- @include now_ms
-- @include lives

local now, ended = now_ms(), 0
for i, payload in ipairs(payloads) do
  local id, claimed, again_ms = jobs[3 * i - 2], tonumber(jobs[3 * i - 1]), tonumber(jobs[3 * i])
  local task = string.match(id, '^(.*):%d+$') or id
  if tonumber(redis.call('ZSCORE', claims, task) or 0) == claimed then
    ended = ended + redis.call('ZREM', claims, task)
  end
  if again_ms then
    redis.call('ZADD', queue, 'NX', string.format('%.0f', now + again_ms), id)
    lives(queue, life_ms + again_ms)
  elseif not redis.call('ZSCORE', queue, id) then
    redis.call('DEL', payload)
  end
end
return { 'OK', ended }
