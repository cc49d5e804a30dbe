-- Put a job in its place, unless it is there: its payload first, because a place without one is dropped
-- by arq's own workers. A job that is due wakes the queue's workers; that they cannot be woken is no
-- error, because they also look by themselves. One that is put off waits in the queue, and its key with it.
-- One that is there, and waits for longer than its place says, goes forward to the given place. The payload says
-- since when the job waits, as long as that is its place.
-- Returns 1 if it was not there.
-- @include job_due
-- @include job_place
-- @include job_forward
-- @include job_since
local function job_put(keys, payload, job, now)
  local due, place, later = job_due(job, now)
  local life_ms = math.floor(job.life_ms + math.max(0, due - now))
  local since = later and due or due + job.earlier_ms
  local text, life_text = job_stamp(job.payload, since), string.format('%.0f', life_ms)
  local written = redis.call('SET', payload, text, 'PX', life_text, 'NX')
  if later and job.key ~= '' then
    redis.call('HSET', keys.owners, 'later:' .. job.id, job.key)
    lives(keys.owners, life_ms)
  end
  local new = job_place(keys, job.id, later and '' or job.key, place, life_ms)
  if new == 1 and not later then redis.pcall('SPUBLISH', job.channel, '') end
  local forward = new == 0 and job.since_ms and not later and job_forward(keys, job.id, place)
  if forward or new == 1 and not written then job_waits(payload, since) end
  return new
end
