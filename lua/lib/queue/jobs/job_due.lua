-- Return when a job is due, in ms and earlier by what its priority is worth, its place, and whether it is put
-- off. A job that is put off is not due any earlier for its priority.
-- Jobs of one millisecond are in the order in which they came. Their places are a millisecond early, because
-- who looks for what is due looks by whole ones. Half a microsecond marks what waits for longer than its place
-- says; it goes before all that came in its millisecond.
-- @include now_us
local function job_due(job, now)
  if (job.at_ms or now) > now then return job.at_ms, string.format('%.0f', job.at_ms), true end
  if job.since_ms then
    local since = math.min(job.since_ms, now) - job.earlier_ms
    return since, string.format('%.0f.9995', since - 2), false
  end
  local us = now_us()
  local came = math.floor(us / 1000) - job.earlier_ms
  return came, string.format('%.0f.%03d', came - 1, us % 1000), false
end
