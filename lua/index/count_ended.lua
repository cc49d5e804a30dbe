-- Count the tasks whose ends are listed between two times, by status.
-- KEYS index     zset: a kind and a value, status, time and id, all of score 0
-- ARGV statuses  letters
-- ARGV low       the lowest place, behind [ or (
-- ARGV high      the highest place, likewise
-- Returns
--   {'OK', count, ...}  for each letter
-- @include index_key

local reply, list = { 'OK' }, index_key('e', '')
for status in string.gmatch(statuses, '.') do
  local from = string.sub(low, 1, 1) .. list .. status .. string.sub(low, 2)
  local to = string.sub(high, 1, 1) .. list .. status .. string.sub(high, 2)
  reply[#reply + 1] = redis.call('ZLEXCOUNT', index, from, to)
end
return reply
