-- The occurrence after one that was fired or is late, in us: the first of the job's own rhythm that
-- is still to come, so that a job neither drifts nor catches up in a burst. '' for a job without one.
local function job_next(occurrence, interval, now_us)
  if interval == '' then return '' end
  local steps = math.floor((now_us - tonumber(occurrence)) / tonumber(interval)) + 1
  return string.format('%.0f', tonumber(occurrence) + math.max(steps, 1) * tonumber(interval))
end
