-- For how many ms a key of a lane may not start another job, as `flow_may` says. `refused` has how many were asked that may
-- not. A limit key that may not is in it, and is asked once, however many sessions' lines stand in its line.
-- @include flow_may
local function lane_may(keys, key, refused, now)
  if key == '' then return 0 end
  local _, above = key_lines(key)
  if above and refused[above] then return nil end
  local wait_ms, full_at = flow_may(keys, key, now)
  if wait_ms ~= 0 then
    refused.number = refused.number + 1
    if above and flow_may(keys, above, now) ~= 0 then refused[above] = true end
  end
  return wait_ms, full_at
end
