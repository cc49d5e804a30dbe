-- Return whether a log holds more rows than it may. A little slack above `most`, 0 for no limit, lets one
-- trim serve many appends.
local function log_over(held, most)
  return most > 0 and held > most + math.min(64, math.floor(most / 16))
end
