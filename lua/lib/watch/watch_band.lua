-- The times of a watch list are in three bands, each this much further ahead, in ms: what may need a repair, what
-- is only checked from time to time, and what was found ended. So none of the first waits behind others. It is the year 2128.
local function watch_band()
  return 5000000000000
end
