-- List the namespaces of a thread, each by its newest checkpoint.
-- KEYS order   zset: places, by name
-- ARGV after   place in the namespace before, '' for the first
-- ARGV size    int: namespaces at most
-- Returns
--   {'OK', place, ...}  of the newest checkpoint of each

local function behind(place) return '(' .. string.match(place, '^[^:]*') .. ';' end
local reply, from = { 'OK' }, after == '' and '-' or behind(after)
while #reply <= size do
  local first = redis.call('ZRANGEBYLEX', order, from, '+', 'LIMIT', 0, 1)[1]
  if not first then break end
  from = behind(first)
  reply[#reply + 1] = redis.call('ZREVRANGEBYLEX', order, from, '[' .. first, 'LIMIT', 0, 1)[1]
end
return reply
