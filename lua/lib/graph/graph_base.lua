-- Read which value another one continues, and the digest of what that was. Nothing for one that stands alone.
local function graph_base(value)
  if string.byte(value, 1) ~= 193 then return nil end
  local size = string.byte(value, 2) * 256 + string.byte(value, 3)
  return string.sub(value, 4, 3 + size), string.sub(value, 4 + size, 19 + size)
end
