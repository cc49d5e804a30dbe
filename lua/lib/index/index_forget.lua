-- Take a task out of the index. The end that is listed right before its own goes too, if it is left over: an
-- earlier version of the package leaves the ends of tasks that it changes or takes out.
-- @include index_doc
-- @include index_members
-- @include index_left_over
local function index_forget(index, about, expiry, id)
  local doc = index_doc(about, id)
  if doc then redis.call('ZREM', index, unpack(index_names(id, doc))) end
  redis.call('HDEL', about, id)
  redis.call('ZREM', expiry, id)
  if not doc or not doc[9] then return end
  local list = index_key('e', '')
  local from = '[' .. list .. string.sub(doc[9], 1, 1)
  local before = redis.call('ZREVRANGEBYLEX', index, '(' .. list .. doc[9] .. id, from, 'LIMIT', 0, 1)[1]
  if not before then return end
  local place = string.sub(before, #list + 1)
  if index_left_over(index_doc(about, string.sub(place, 9)), string.sub(place, 1, 8)) then
    redis.call('ZREM', index, before)
  end
end
