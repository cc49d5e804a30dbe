-- Make a task's log ready to number the version after `version`. The events of a task that has ended
-- live as long as it says now, not as long as one that goes on. Numbers go on where the task is, also
-- if the log was lost.
-- @include log_head
local function a2a_number(log, version, now, phase)
  for name, value in pairs(log_head(log.ids)) do log[name] = value end
  log.now = now
  if log.last < version then
    redis.call('UNLINK', log.rows, log.ids)
    log.first, log.first_ms, log.last, log.last_ms, log.expires, log.text = version + 1, now, version, 0, 0, ''
  end
  if phase == 'e' then log.expires = 0 end
end
