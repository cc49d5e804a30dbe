-- What a group's change returns to its caller: the status, and 1 if that very call ended the group.
local function group_reply(group, call)
  local is = redis.call('HMGET', group, 'status', 'completer')
  return { 'OK', is[1], is[2] == call and 1 or 0 }
end
