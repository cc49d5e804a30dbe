-- Return the member that an open pause has in the list of its session's tasks: a byte that no text begins with,
-- then its token's digest, the last part of its key. Its score is below 0, that of a task above: minus its
-- deadline in ms.
local function pause_member(token)
  return '\255' .. string.match(token, '[^:]*$')
end
