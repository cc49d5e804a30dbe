-- Return whether a time was written before the clock was set back: it is ahead by more than the clocks of two
-- servers may differ.
local function is_ahead(at_ms, now)
  return at_ms > now + 60000
end
