-- Move a job of the list of jobs with keys from where its owner says to another place. It is added there first: a list
-- that was empty in between would have no lifetime.
-- @include line_again
local function line_move(keys, id, owner, place)
  local moved = string.match(owner, '^[^%z]*') .. '\0' .. string.format('%018.4f', tonumber(place))
  redis.call('ZADD', keys.keyed, 0, line_member(moved, id))
  if moved ~= owner then redis.call('ZREM', keys.keyed, line_member(owner, id)) end
  redis.call('HSET', keys.owners, id, moved)
  local line = string.match(owner, '^(1:[^;%z]*)')
  if line then line_again(keys, line) end
end
