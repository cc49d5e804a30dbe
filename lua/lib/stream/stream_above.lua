-- Whether a text is above another, byte by byte: Lua's own order is that of the server's language.
local function stream_above(text, other)
  for i = 1, math.min(#text, #other) do
    local here, there = string.byte(text, i), string.byte(other, i)
    if here ~= there then return here > there end
  end
  return #text > #other
end
