-- Take a task out of the index.
-- @include index_doc
-- @include index_members
local function index_forget(index, about, expiry, id)
  local doc = index_doc(about, id)
  if doc then redis.call('ZREM', index, unpack(index_names(id, doc))) end
  redis.call('HDEL', about, id)
  redis.call('ZREM', expiry, id)
end
