-- Put a job in its place, unless it is there: its payload first, because a place without one is dropped
-- by arq's own workers. A job that is due wakes the queue's workers; that they cannot be woken is no
-- error, because they also look by themselves. `earlier_ms` is what its priority is worth. A job that
-- is put off is not due any earlier for it: it waits in the queue, and its key with it. What waits for longer
-- goes half a millisecond earlier: a task that a dead worker left stays before what came after it in the same
-- millisecond. Returns 1 if it was not there.
-- @include job_place
local function job_put(keys, payload, job, now)
  local due = job.at_ms and math.max(job.at_ms, now) or now
  local later = due > now
  if not later then due = math.min(job.since_ms or now, now) - job.earlier_ms end
  local life_ms = math.floor(job.life_ms + math.max(0, due - now))
  redis.call('SET', payload, job.payload, 'PX', string.format('%.0f', life_ms), 'NX')
  local place = job.since_ms and string.format('%.1f', due - 0.5) or string.format('%.0f', due)
  if later and job.key ~= '' then
    redis.call('HSET', keys.owners, 'later:' .. job.id, job.key)
    lives(keys.owners, life_ms)
  end
  local new = job_place(keys, job.id, later and '' or job.key, place, life_ms)
  if new == 1 and not later then redis.pcall('SPUBLISH', job.channel, '') end
  return new
end
