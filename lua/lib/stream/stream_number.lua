-- The number of a row's place, which is <n>-<ms>.
local function stream_number(place)
  return tonumber(string.match(place, '^%d+'))
end
