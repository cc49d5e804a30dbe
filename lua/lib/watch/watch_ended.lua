-- An entry whose thing was found ended has this much on top of its time, in ms: the year 2286. So whatever
-- may need a repair is due before it.
local function watch_ended()
  return 10000000000000
end
