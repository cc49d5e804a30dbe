-- Count the seats of a pause by their state: open, approved, rejected, delegated or retired. Everybody
-- who is named to decide it has a seat, a field of its token's hash.
local function pause_count(key)
  local seats = { open = 0, approved = 0, rejected = 0, delegated = 0, retired = 0 }
  local held = redis.call('HGETALL', key)
  for i = 1, #held, 2 do
    if string.sub(held[i], 1, 5) == 'seat:' then
      local state = string.match(held[i + 1], '^%l+')
      seats[state] = seats[state] + 1
    end
  end
  return seats
end
