-- Whether a task is in all the lists, each a kind and a value in one.
local function index_has(doc, wanted)
  for _, list in ipairs(wanted) do
    local has = list == 's' .. doc[5] or list == 'h' .. doc[7]
    for _, attribute in ipairs(doc[8]) do has = has or list == 'a' .. attribute end
    if not has then return false end
  end
  return true
end
