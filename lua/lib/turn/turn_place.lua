-- Choose a new task's place in the line: before all others if it interrupts, that of what it replaces.
local function turn_place(policy, found, place, delay_ms)
  -- One place is left in front of it, for what it interrupts and has still to undo something.
  if policy == 'interrupt' and found.front then return math.min(place, found.front - 2) end
  if policy == 'replace' and found.taken and delay_ms == 0 then return math.min(place, found.taken) end
  return place
end
