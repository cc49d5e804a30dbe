-- Bring a job forward that waits by a clock that was set back since. Nothing is tried again for as long as that.
-- @include flow_key
local function job_late(keys, job, now)
  local late = tonumber(redis.call('ZSCORE', keys.queue, job.id) or 0) - math.max(now, job.at_ms or now)
  if late > 300000 then redis.call('ZADD', keys.queue, 'XX', string.format('%.0f', now), job.id) end
  -- Its key may wait with it: the line of its session, or the rate. A turn too early only finds that it must wait.
  local key = string.match(redis.call('HGET', keys.owners, job.id) or '', '^([1k]:[^%z]*)%z')
  if key and tonumber(redis.call('ZSCORE', keys.waits, key) or 0) > now + 300000 then flow_turn(keys, key) end
end
