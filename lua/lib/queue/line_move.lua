-- Move a job of the list of jobs with keys from what its owner says to another place. It is added there first: a list
-- that was empty in between would have no lifetime.
local function line_move(keys, id, owner, moved)
  redis.call('ZADD', keys.keyed, 0, moved .. '\0' .. id)
  if moved ~= owner then redis.call('ZREM', keys.keyed, owner .. '\0' .. id) end
  redis.call('HSET', keys.owners, id, moved)
end
