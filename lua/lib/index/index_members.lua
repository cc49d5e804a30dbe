-- Where a task is listed: under everything, its session, its handler and each attribute; there by
-- status, then by the time of its creation. Once it has ended, among the ends too, by the time of its end.
-- @include index_key
local function index_members(id, doc)
  local place = doc[1] .. struct.pack('>I7', doc[4]) .. id
  local members = { 0, index_key('*', '') .. place, 0, index_key('s', doc[5]) .. place, 0, index_key('h', doc[7]) .. place }
  for _, attribute in ipairs(doc[8]) do
    members[#members + 1], members[#members + 2] = 0, index_key('a', attribute) .. place
  end
  if doc[9] then members[#members + 1], members[#members + 2] = 0, index_key('e', '') .. doc[9] .. id end
  return members
end

-- Where it is listed, without the scores.
local function index_names(id, doc)
  local names = {}
  for i, member in ipairs(index_members(id, doc)) do
    if i % 2 == 0 then names[#names + 1] = member end
  end
  return names
end
