-- Give an actor a seat of a pause, unless there is one. Who has delegated it has it no more, and who has it
-- then is given it back if it was retired. Returns whose seat it is.
local function pause_seat(key, actor)
  local seat = redis.call('HGET', key, 'seat:' .. actor)
  local to = string.match(seat or '', '^delegated %d+ (.*)$')
  while to do
    actor, seat = to, redis.call('HGET', key, 'seat:' .. to)
    to = string.match(seat or '', '^delegated %d+ (.*)$')
  end
  if not seat or string.match(seat, '^retired') then redis.call('HSET', key, 'seat:' .. actor, 'open') end
  return actor
end
