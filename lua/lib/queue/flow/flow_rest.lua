-- Let a line rest until a time.
-- @include flow_head
-- @include flow_rate
local function flow_rest(keys, line, at_ms)
  local head = flow_head(keys, line)
  if head then redis.call('ZREM', keys.heads, head) end
  redis.call('ZREM', keys.turns, line)
  flow_later(keys.waits, line, at_ms)
end
