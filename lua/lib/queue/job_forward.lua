-- Move a job that waits in its key's line to a place that is before its own; return whether it is moved.
-- @include job_line
-- @include line_move
local function job_forward(keys, id, place)
  local key, entry = job_line(keys.owners, id)
  if not key or tonumber(string.match(entry, '%z([^%z]+)%z')) <= tonumber(place) then return false end
  local owner = string.sub(entry, 1, -2 - #id)
  line_move(keys, id, owner, key .. '\0' .. string.format('%018.4f', tonumber(place)))
  return true
end
