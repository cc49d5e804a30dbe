-- What the index knows of a task: status, version, write, created, session, task, handler, attributes, and
-- where its end is listed: a status and 7 bytes of time. nil of one that it does not list. An earlier version
-- of the package writes no end, and keeps that of a task that it moves.
local function index_doc(about, id)
  local packed = redis.call('HGET', about, id)
  return packed and cmsgpack.unpack(packed) or nil
end

-- What distinguishes one state of a task from another, as text. The end is part of it: so a task whose end
-- is missing, or is that of an earlier run, is corrected by each process that compares it with the record.
local function index_stamp(doc)
  if not doc then return '' end
  local ended = doc[9] and string.format(' %.0f', (struct.unpack('>I7', doc[9], 2))) or ''
  return string.format('%.0f', doc[2]) .. ' ' .. doc[3] .. ' ' .. doc[1] .. ended
end
