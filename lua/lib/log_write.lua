-- Append rows to a task's topic in a log, as part of a larger step. `log` names its keys and has
-- topic, max_rows and ttl_ms; `pairs_in` holds id and row in turn.
-- @include log_head
-- @include log_append
-- @include log_trim
-- @include log_close
local function log_write(log, pairs_in, now)
  for name, value in pairs(log_head(log.ids)) do log[name] = value end
  log.now, log.announce = now, '1'
  for i = 1, #pairs_in, 2 do log_append(log, pairs_in[i], pairs_in[i + 1]) end
  log_trim(log, log.max_rows, log.ttl_ms)
  log_close(log, log.ttl_ms)
end
