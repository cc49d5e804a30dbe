-- Why rows after a place cannot be read without a gap; nil if they can.
-- @include stream_number
local function stream_gap(rows, place, first, last)
  if place == last or place == first then return nil end
  local n = stream_number(place)
  if n < stream_number(first) then return 'trimmed' end
  if n > stream_number(last) then return 'ahead' end
  if #redis.call('XRANGE', rows, place, place) == 1 then return nil end
  return 'rewound'
end
