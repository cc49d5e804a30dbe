-- Cancel the i-th of the known tasks, which waits, and return its version.
-- @include announce
-- @include record_write
-- @include archive_ended
local function turn_cancel(tasks, announcement, others, known, i, fields, write, ttl_ms, hold_ms, now)
  local log, id = {}, known[3 * i - 2]
  for name, value in pairs(announcement) do log[name] = value end
  log.row_id, log.row = known[3 * i - 1], known[3 * i]
  announce(log, id, now)
  redis.call('PEXPIRE', others[2 * i], ttl_ms)
  local version = record_write(others[2 * i - 1], { key = tasks, member = id }, write, ttl_ms, fields)
  archive_ended(others[2 * i - 1], tasks, others[2 * i], id, log, hold_ms, now)
  return version
end
