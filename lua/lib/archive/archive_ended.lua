-- Hold a task that ends, and the log of its session's updates, in the step that ends it: they do not expire until they
-- are archived. With a `hold_ms` of 0 nothing is. A host's task, which has no job, is
-- held by who lists it.
-- @include archive_hold
-- @include archive_place
-- @include log_hold
local function archive_ended(task, tasks, journal, task_id, updates, hold_ms, now)
  if hold_ms == 0 or redis.call('HEXISTS', task, 'job') == 0 then return end
  if archive_hold(task, { journal }, hold_ms, hold_ms, now) == 1 then
    archive_place_hold(tasks, task_id, now, hold_ms)
  end
  log_hold(updates.rows, updates.ids, hold_ms / 2, hold_ms, now)
end
