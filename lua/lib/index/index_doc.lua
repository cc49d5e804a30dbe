-- What the index knows of a task: status, version, write, created, session, task, handler, attributes;
-- nil of one that it does not list.
local function index_doc(about, id)
  local packed = redis.call('HGET', about, id)
  return packed and cmsgpack.unpack(packed) or nil
end

-- What distinguishes one state of a task from another, as text.
local function index_stamp(doc)
  return doc and string.format('%.0f', doc[2]) .. ' ' .. doc[3] .. ' ' .. doc[1] or ''
end
