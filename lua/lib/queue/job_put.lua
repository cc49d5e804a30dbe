-- Put a job in its place, unless it is there: its payload first, because a place without one is dropped
-- by arq's own workers. A job that is due wakes the queue's workers; that they cannot be woken is no
-- error, because they also look by themselves. One that is put off waits in the queue, and its key with it.
-- One that is there, and waits for longer than its place says, goes forward to the given place.
-- Returns 1 if it was not there.
-- @include job_due
-- @include job_place
-- @include job_forward
local function job_put(keys, payload, job, now)
  local due, place, later = job_due(job, now)
  local life_ms = math.floor(job.life_ms + math.max(0, due - now))
  redis.call('SET', payload, job.payload, 'PX', string.format('%.0f', life_ms), 'NX')
  if later and job.key ~= '' then
    redis.call('HSET', keys.owners, 'later:' .. job.id, job.key)
    lives(keys.owners, life_ms)
  end
  local new = job_place(keys, job.id, later and '' or job.key, place, life_ms)
  if new == 1 and not later then redis.pcall('SPUBLISH', job.channel, '') end
  if new == 0 and job.since_ms and not later then job_forward(keys, job.id, place) end
  return new
end
