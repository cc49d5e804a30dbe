-- An earlier version of the library knows a key as one line, whatever it says. Put the jobs that wait so in their lines.
-- @include flow_turn
local function line_mend(keys, key)
  local member = flow_first(keys.keyed, key)
  while member do
    local id = string.match(member, '%z[^%z]+%z(.*)$')
    local owner = redis.call('HGET', keys.owners, id)
    if owner then redis.call('ZADD', keys.keyed, 0, line_member(owner, id)) end
    redis.call('ZREM', keys.keyed, member)
    member = flow_first(keys.keyed, key)
  end
  flow_turn(keys, (key_lines(key)))
end
