-- Place a job that is due where a worker finds it: under its key, if it has one. Returns 1 if it was not there.
-- @include lives
-- @include flow_turn
local function job_place(keys, id, key, place, life_ms)
  if key == '' then
    local new = redis.call('ZADD', keys.queue, 'NX', place, id)
    lives(keys.queue, life_ms)
    return new
  end
  local owner = key .. '\0' .. string.format('%018.4f', tonumber(place))
  if redis.call('HSETNX', keys.owners, id, owner) == 0 then return 0 end
  redis.call('ZADD', keys.keyed, 0, line_member(owner, id))
  local line, above = key_lines(key)
  flow_turn(keys, line)
  for _, each in ipairs({ keys.owners, keys.keyed, keys.turns, above and keys.heads }) do lives(each, life_ms) end
  return 1
end
