-- Add one that is in the way: `begun` has ids and orders, `waiting` numbers among those known.
local function turn_meet(found, busy, id, place, i)
  if busy.begun then
    found.begun[#found.begun + 1], found.begun[#found.begun + 2] = id, busy.order
  else
    found.waiting[#found.waiting + 1] = i
    found.taken = math.min(found.taken or place, place)
  end
  if not found.first or busy.begun and found.status == 'PENDING' then found.first, found.status = id, busy.status end
  found.front = math.min(found.front or place, place)
end
