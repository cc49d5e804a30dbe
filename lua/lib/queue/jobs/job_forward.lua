-- Move a job that waits in its key's line to a place that is before its own; return whether it is moved.
-- @include job_line
-- @include line_move
local function job_forward(keys, id, place)
  local line, its_place, owner = job_line(keys.owners, id)
  if not line or tonumber(its_place) <= tonumber(place) then return false end
  line_move(keys, id, owner, place)
  return true
end
