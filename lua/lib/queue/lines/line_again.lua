-- Let a line take its turn whose first job may be another one now. One that rests until a time still rests.
-- @include flow_turn
local function line_again(keys, line)
  if flow_first(keys.keyed, line) and not redis.call('ZSCORE', keys.waits, line) then flow_turn(keys, line) end
end
