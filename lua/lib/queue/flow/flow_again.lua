-- Let each key whose rate lets it start again take its turn.
-- @include flow_turn
local function flow_again(keys, now_text)
  for _, key in ipairs(redis.call('ZRANGE', keys.waits, '-inf', now_text, 'BYSCORE', 'LIMIT', 0, 256)) do
    redis.call('ZREM', keys.waits, key)
    flow_turn(keys, key)
  end
end
