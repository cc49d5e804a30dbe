-- Make a task's log ready to number the version after `version`. The events of a task that has ended
-- live as long as this write says, not as long as those of an active one. Numbers continue at the task's
-- version, also if the log was lost.
-- @include log_head
local function a2a_number(log, version, now, phase)
  local head = log_head(redis.call('HGET', log.ids, ''))
  if head.last < version then
    redis.call('UNLINK', log.rows, log.ids)
    head = { first = version + 1, first_ms = now, last = version, last_ms = 0, expires = 0, before_ms = 0 }
  end
  if phase == 'e' then head.expires = 0 end
  log.head = log_text(head)
end
