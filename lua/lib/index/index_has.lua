-- Whether a task is in all the lists, each a kind and a value in one. Two kinds are no lists: < and > before
-- a time, in us, before which a task was made, or not.
local function index_has(doc, wanted)
  for _, list in ipairs(wanted) do
    local has = list == 's' .. doc[5] or list == 'h' .. doc[7]
    local sign, created = string.match(list, '^([<>])(%d+)$')
    if sign then has = (doc[4] < tonumber(created)) == (sign == '<') end
    for _, attribute in ipairs(doc[8]) do has = has or list == 'a' .. attribute end
    if not has then return false end
  end
  return true
end
