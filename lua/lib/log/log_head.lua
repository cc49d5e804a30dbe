-- What a log knows of itself, kept in its ids under the empty id: '<last>-<last_ms> <first> <first_ms>
-- <expires> <before_ms>'. Rows first..last are there; all of them expire at `expires`; row first-1
-- was dropped and had the time `before_ms`. An absent log is an empty one that gave no number yet.
-- `first_ms` is the time of row `first`. In a log that is held for the archive it is until when: no row is too
-- old by then. Only then it is later than the last row's.
local function log_head(text)
  local last, last_ms, first, first_ms, expires, before_ms =
    string.match(text or '0-0 1 0 0 0', '^(%d+)-(%d+) (%d+) (%d+) (%d+) (%d+)$')
  local head = {
    last = tonumber(last), last_ms = tonumber(last_ms), first = tonumber(first),
    first_ms = tonumber(first_ms), expires = tonumber(expires), before_ms = tonumber(before_ms),
  }
  head.held = head.first_ms > head.last_ms and head.first_ms or nil
  return head
end

-- The same as it is kept.
local function log_text(head)
  return string.format('%.0f-%.0f %.0f %.0f %.0f %.0f',
    head.last, head.last_ms, head.first, head.held or head.first_ms, head.expires, head.before_ms)
end
