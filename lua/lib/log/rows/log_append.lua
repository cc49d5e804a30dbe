-- Append a row to a log: once per id, published, trimmed and renewed in the same step. `log` names rows,
-- ids and channel, and has topic, max_rows and ttl_ms; announce is false for a log without subscribers;
-- keeps_old says that no row is too old, more that further rows come before any is dropped; head is
-- there if the log's is another than it has kept. `now` is in ms, a number or text; the row's time is
-- never before the last one's, also if the clock was set back. Returns the row's number, 1 if it is new,
-- else 0, and the time of a new one as text.
-- Every append runs this: no table is made and nothing called that most rows can do without.
-- @include log_fields
-- @include log_over
-- @include log_row
-- @include log_trim
local function log_append(log, id, row, now)
  local found, ttl_ms = log_fields(log, id), log.ttl_ms
  local was, known, index = found[1], found[2], found[1] and found[3]
  if known then return tonumber(known), 0 end
  if type(now) == 'number' then now = string.format('%.0f', now) end
  local last, last_ms, rest, first, first_ms, expires, before_ms =
    string.match(log.head or was or '0-0 1 0 0 0', '^(%d+)-(%d+)( (%d+) (%d+) (%d+) (%d+))$')
  local number, prolonged, at = last + 1, expires - now < ttl_ms, last_ms - now > 0 and last_ms or now
  local n = string.format('%.0f', number)
  if n == first then first_ms = at end
  if prolonged then expires = string.format('%.0f', now + ttl_ms + math.floor(ttl_ms / 2)) end
  if n == first or prolonged then rest = string.format(' %s %s %s %s', first, first_ms, expires, before_ms) end
  local is_new = log_row(log, was, rest, n, at, id, row, index)
  -- Of a log that is held, `first_ms` is until when.
  local ends = (prolonged or is_new) and (first_ms - expires > 0 and first_ms or expires)
  if ends then for _, key in ipairs({ log.rows, log.ids }) do redis.call('PEXPIREAT', key, ends) end end
  local held, late = number - first + 1, now - first_ms > ttl_ms and not log.keeps_old
  local over = held > log.max_rows and log_over(held, log.max_rows)
  if (over or late) and not log.more then log_trim(log, n .. '-' .. at .. rest, over, now) end
  return number, 1, at
end
