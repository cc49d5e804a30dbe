-- Bring a job forward that waits by a clock that was set back since. Nothing is tried again later than in a minute.
-- Let its key take its turn, unless that waits for a time: a turn may have expired while no worker was there. One
-- that comes too early only finds that the key must wait.
-- @include flow_turn
-- @include job_line
-- @include job_since
local function job_late(keys, payload, job, now)
  local due, longest_ms = math.max(now, job.at_ms or now), 61000
  local late = tonumber(redis.call('ZSCORE', keys.queue, job.id) or 0) - due
  if late > longest_ms then
    redis.call('ZADD', keys.queue, 'XX', string.format('%.0f', due), job.id)
    job_waits(payload, due)
  end
  local line = job_line(keys.owners, job.id)
  local waits = line and tonumber(redis.call('ZSCORE', keys.waits, line) or nil)
  if line and (not waits or waits > now + longest_ms) then flow_turn(keys, line) end
end
