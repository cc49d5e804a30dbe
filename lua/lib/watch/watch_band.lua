-- The times of a watch list are in three bands. Return how far ahead a band begins, in ms: 0 is what may need a repair, 1
-- what is only checked from time to time (the year 2160), 2 what was found ended (2286). So none of the first waits
-- behind others. An earlier version knows 0 and 2 alone. If it sees that the clock was set back, it puts what is nearer
-- than half of 2 off by a thousandth of that. So 1 begins behind that half, by 31 years: so long a check may be overdue.
local function watch_band(number)
  return ({ 0, 6000000000000, 10000000000000 })[number + 1]
end
