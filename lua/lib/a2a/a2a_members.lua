-- A task's places in the list: under everything, its state, its context, and both. Each begins with
-- the filter, then the time in digits, then the id. So the order of bytes is that of the list, and a
-- prefix is a filter.
local function a2a_members(id, place)
  local context, state, time = string.match(place, '^(%S+) (%S+) (%S+)$')
  local members = {}
  for _, asked in ipairs({ '*|*|', '*|' .. state .. '|', context .. '|*|', context .. '|' .. state .. '|' }) do
    members[#members + 1] = asked .. time .. id
  end
  return members
end
