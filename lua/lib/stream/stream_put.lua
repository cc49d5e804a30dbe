-- Append a row behind the last one, and return its place. Times never fall.
-- @include stream_number
local function stream_put(rows, last, now, data)
  local ms = string.match(last, '%d+$')
  local later = tonumber(ms) > tonumber(now) and ms or now
  local place = string.format('%.0f', stream_number(last) + 1) .. '-' .. later
  redis.call('XADD', rows, place, 'data', data)
  return place
end
