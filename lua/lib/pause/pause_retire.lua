-- Retire the open seats of a pause but those of `kept`, unless too few were left to reach its approvals.
-- @include pause_count
local function pause_retire(key, kept, now)
  local open, left, retired = pause_count(key).open, 0, {}
  for actor in pairs(kept) do
    if redis.call('HGET', key, 'seat:' .. actor) == 'open' then left = left + 1 end
  end
  local approved, needed = pause_count(key).approved, tonumber(redis.call('HGET', key, 'approvals'))
  if left == open or approved + left < needed then return end
  local held = redis.call('HGETALL', key)
  for i = 1, #held, 2 do
    local actor = string.match(held[i], '^seat:(.*)$')
    if actor and held[i + 1] == 'open' and not kept[actor] then
      redis.call('HSET', key, held[i], string.format('retired %.0f', now))
    end
  end
end
