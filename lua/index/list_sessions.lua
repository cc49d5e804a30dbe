-- List sessions that have tasks in the index, in the order of their ids.
-- KEYS index  zset: a kind and a value, status, time and id, all of score 0
-- KEYS about  hash: id -> what is known of a task
-- ARGV after  where the session before is listed, '' for the first
-- ARGV size   int: sessions at most
-- Returns
--   {'OK', place, session, ...}  where each is listed, and its id
-- @include index_doc

local reply, from = { 'OK' }, after == '' and '[s' or '[' .. after .. '\1'
while #reply < 1 + 2 * size do
  local member = redis.call('ZRANGEBYLEX', index, from, '(t', 'LIMIT', 0, 1)[1]
  if not member then break end
  -- What is listed under a value begins with the value and \0; the next value's begins with more.
  local place = string.sub(member, 1, string.find(member, '%z') - 1)
  local doc = index_doc(about, string.sub(member, -10))
  if doc then reply[#reply + 1], reply[#reply + 2] = place, doc[5] end
  from = '[' .. place .. '\1'
end
return reply
