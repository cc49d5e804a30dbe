-- Count the tasks that are listed under values of a kind, by status, and name the time of the newest.
-- KEYS index     zset: a kind and a value, status, time and id, all of score 0
-- ARGV kind      of the lists
-- ARGV statuses  letters
-- ARGV values..  of the lists
-- Returns
--   {'OK', newest, count, ...}  for each value the time in us, 0 without any, and a count for each letter
-- @include index_key

local reply = { 'OK' }
for _, value in ipairs(values) do
  local key, newest = index_key(kind, value), #reply + 1
  reply[newest] = 0
  for status in string.gmatch(statuses, '.') do
    local list = key .. status
    local count = redis.call('ZLEXCOUNT', index, '[' .. list, '(' .. list .. '\255')
    if count > 0 then
      local last = redis.call('ZREVRANGEBYLEX', index, '(' .. list .. '\255', '[' .. list, 'LIMIT', 0, 1)[1]
      reply[newest] = math.max(reply[newest], (struct.unpack('>I7', string.sub(last, #list + 1))))
    end
    reply[#reply + 1] = count
  end
end
return reply
