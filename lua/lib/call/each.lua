-- Run the body of a script for the call that was sent, or for each of several that were sent as one
-- command, in turn. All have as many keys, and as many arguments, as the first. One that fails
-- fails alone: its reply is an error among the replies. A full server refuses all, unless one of
-- them has written what such a server lets pass: those behind it are then let pass too.
local function each(body, keys, given, width)
  local calls = #keys / width
  if calls == 1 then return body(keys, given) end
  local replies, share = {}, #given / calls
  for i = 0, calls - 1 do
    local of_keys, of_given = i * width, i * share
    local done, reply = pcall(body, { unpack(keys, of_keys + 1, of_keys + width) },
      { unpack(given, of_given + 1, of_given + share) })
    if not done and type(reply) ~= 'table' then
      -- What the server refuses begins with a code; what Lua does, with its place.
      reply = tostring(reply)
      reply = { err = string.find(reply, '^%u+ ') and reply or 'ERR ' .. reply }
    end
    -- Nothing would end the list.
    replies[i + 1] = reply or false
  end
  return replies
end
