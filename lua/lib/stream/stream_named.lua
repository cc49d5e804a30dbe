-- A stream by the names of what is known of it; nil if there is none. One that is being made is none.
-- @include stream_view
local function stream_named(info, is_fork)
  local v = stream_view(info)
  if not v[1] or (v[2] == 'copying' and not is_fork) then return nil end
  return {
    view = v, id = v[1], state = v[2], type = v[3], life = v[4], expires = v[5], closed = v[6] == '1',
    closer = v[7], first = v[8], last = v[9], bytes = tonumber(v[10]), seq = v[11], forks = v[13],
  }
end
