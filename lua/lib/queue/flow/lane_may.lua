-- For how many ms a key of a lane may not start another job, as `flow_may` says. `refused` counts the keys that may not.
-- It has the limit keys among them, too: each is looked at once, however many sessions' lines stand in its line.
-- @include flow_may
local function lane_may(keys, key, refused, now)
  if key == '' then return 0 end
  local _, above = key_lines(key)
  if above and refused[above] then return nil end
  local wait_ms, full_at, rate = flow_may(keys, key, now)
  if wait_ms ~= 0 then
    refused.number = refused.number + 1
    if above and flow_may(keys, above, now) ~= 0 then refused[above] = true end
  end
  return wait_ms, full_at, rate
end
