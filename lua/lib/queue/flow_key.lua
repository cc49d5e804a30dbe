-- The first waiting job of a key, as a member of the list of jobs with keys: key, place and id, each but the
-- last followed by a zero byte. Keys have only plain characters.
local function flow_first(keyed, key)
  return redis.call('ZRANGEBYLEX', keyed, '[' .. key .. '\0', '(' .. key .. '\1', 'LIMIT', 0, 1)[1]
end

-- Let a key take its turn behind those that wait already, and wake a worker for it.
local function flow_turn(keys, key)
  redis.call('ZADD', keys.turns, 'NX', redis.call('HGET', keys.flow, 'turn') or 0, key)
  -- It may be the first, after all of them had their turn.
  if redis.call('PTTL', keys.turns) < 0 then redis.call('PEXPIRE', keys.turns, 691200000) end
end
