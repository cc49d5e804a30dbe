-- End a sealed group of whose members none is pending; `call` is the one that completed it. What
-- reports on groups as a whole is due with it.
local function group_settle(group, call, now)
  local is = redis.call('HMGET', group, 'status', 'pending', 'failed', 'report')
  if is[1] ~= 'sealed' or tonumber(is[2] or 0) > 0 then return end
  local ended = tonumber(is[3] or 0) > 0 and 'failed' or 'complete'
  redis.call('HSET', group, 'status', ended, 'ended', string.format('%.0f', now), 'completer', call)
  if is[4] == 'all' then redis.call('HSET', group, 'reported', 1) end
end
