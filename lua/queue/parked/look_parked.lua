-- Count the jobs that wait for a worker with their version, by handler and version, and name the first of each.
-- KEYS keyed   zset: lane, key, place and id of each job that waits so, in order
-- ARGV lanes   int: handlers and versions at most
-- ARGV limit   int: jobs of each at most
-- Returns
--   {'OK', lane, count, members, ...}  of each handler and version

local reply, from = { 'OK' }, '[v:'
for _ = 1, lanes do
  local first = redis.call('ZRANGEBYLEX', keyed, from, '(v;', 'LIMIT', 0, 1)[1]
  if not first then break end
  local lane = string.match(first, '^v:[^;]*;')
  local last = '(' .. string.sub(lane, 1, -2) .. '<'
  reply[#reply + 1] = lane
  reply[#reply + 1] = redis.call('ZLEXCOUNT', keyed, '[' .. lane, last)
  reply[#reply + 1] = redis.call('ZRANGEBYLEX', keyed, '[' .. lane, last, 'LIMIT', 0, limit)
  from = '[' .. string.sub(last, 2)
end
return reply
