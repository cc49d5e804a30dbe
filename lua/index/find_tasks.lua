-- Read a part of a page of tasks from one list of the index, in the order of their creation, and leave out
-- those that are not in all other wanted lists. A task's place is its time and id. The list of kind e is in the
-- order of the ends, and so are the places.
-- KEYS index     zset: a kind and a value, status, time and id, all of score 0
-- KEYS about     hash: id -> what is known of a task
-- ARGV kind      of the list
-- ARGV value     of the list
-- ARGV statuses  letters
-- ARGV newest    flag: the newest first
-- ARGV low       the lowest place, behind [ or (
-- ARGV high      the highest place, likewise
-- ARGV size      int: tasks at most
-- ARGV most      int: tasks that are read at most
-- ARGV wanted..  kind and value in one, of the other lists; or < or > and a time of creation, in us
-- Returns
--   {'OK', more, last, place, stamp, session, task, handler, ...}  more is 1 if another part follows behind last, the
--                    place of the last task that was read
-- @include index_key
-- @include index_doc
-- @include index_page
-- @include index_has
-- @include index_left_over

local heads, key = {}, index_key(kind, value)
for status in string.gmatch(statuses, '.') do
  local list = key .. status
  local from = string.sub(low, 1, 1) .. list .. string.sub(low, 2)
  local to = string.sub(high, 1, 1) .. list .. string.sub(high, 2)
  local members = newest and redis.call('ZREVRANGEBYLEX', index, to, from, 'LIMIT', 0, most + 1)
    or redis.call('ZRANGEBYLEX', index, from, to, 'LIMIT', 0, most + 1)
  heads[#heads + 1] = { members = members, at = 0, skip = #list, status = status }
  index_advance(heads[#heads])
end
local reply = { 'OK', 0, '' }
local head = index_first(heads, newest)
for _ = 1, most do
  if not head or #reply >= 3 + 5 * size then break end
  reply[3] = head.place
  local doc = index_doc(about, string.sub(head.place, 8))
  local gone = not doc or kind == 'e' and index_left_over(doc, head.status .. string.sub(head.place, 1, 7))
  if not gone and index_has(doc, wanted) then
    for _, fact in ipairs({ head.place, index_stamp(doc), doc[5], doc[6], doc[7] }) do reply[#reply + 1] = fact end
  end
  index_advance(head)
  head = index_first(heads, newest)
end
reply[2] = head and 1 or 0
return reply
