-- Check that reading on from row `after` skips nothing. If it would, return the reason, and the number
-- and time of the row from which to read on. A row is known by its number and its time: the number
-- alone is given again when the server's history goes back. Of a history that was lost, what its reader
-- has seen and what is still there is what was written by the cursor's time; all else is new to it.
-- @include log_before
local function log_position(rows, head, after, after_ms)
  local start, start_ms = head.first - 1, head.before_ms
  if after < 0 then return 'foreign', start, start_ms end
  if after < start then return 'trimmed', start, start_ms end
  if after_ms == 0 and after > head.last then return 'ahead', head.last, head.last_ms end
  if after == 0 or after_ms == 0 or log_ms(rows, head, after) == after_ms then return nil end
  local n, ms = log_before(rows, head, after_ms)
  if n == head.last and n < after then return 'ahead', n, ms end
  -- Nothing that its reader has seen is left, or this log had that row at another time already.
  if not n or n == 0 or n >= after then return 'foreign', start, start_ms end
  return 'rewound', n, ms
end
