-- Let a line take its turn behind those that wait already, and wake a worker for it.
-- @include flow_head
local function flow_turn(keys, line)
  local head, above = flow_head(keys, line)
  if head then
    redis.call('ZADD', keys.heads, 0, head)
    if redis.call('PTTL', keys.heads) < 345600000 then redis.call('PEXPIRE', keys.heads, 691200000) end
  end
  redis.call('ZADD', keys.turns, 'NX', redis.call('HGET', keys.flow, 'turn') or 0, above or line)
  -- It may be the first, after all of them had their turn.
  if redis.call('PTTL', keys.turns) < 0 then redis.call('PEXPIRE', keys.turns, 691200000) end
end
