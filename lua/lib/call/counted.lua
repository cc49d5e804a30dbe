-- Copy the list whose length stands at `at`, and return what stands behind it.
local function counted(list, at)
  local items, behind = {}, at + 1 + list[at]
  for i = at + 1, behind - 1 do items[#items + 1] = list[i] end
  return items, behind
end
