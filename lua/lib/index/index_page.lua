-- Walk several lists of one order at once: a head for each, with the place of its next member.
local function index_advance(head)
  head.at = head.at + 1
  head.place = head.members[head.at] and string.sub(head.members[head.at], head.skip + 1)
end

-- The head with the first place. Bytes are compared: the order of texts depends on the server's locale.
local function index_first(heads, newest)
  local first
  for _, head in ipairs(heads) do
    local a, b = head.place, first and first.place
    local i = 1
    while a and b and i < #a and string.byte(a, i) == string.byte(b, i) do i = i + 1 end
    if a and (not b or (string.byte(a, i) > string.byte(b, i)) == newest) then first = head end
  end
  return first
end
