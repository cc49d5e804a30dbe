-- Return whether one of several boxes, each between zero bytes, holds a message. A name may have a zero byte too:
-- what does not begin with a kind belongs to the name before it.
local function mail_there(journal, boxes)
  local box
  local function holds() return box and redis.call('HEXISTS', journal, 'box:' .. box) == 1 end
  for part in string.gmatch(string.sub(boxes, 2), '([^%z]*)%z') do
    if box and not string.find(part, '^signal:') and not string.find(part, '^request:') then
      box = box .. '\0' .. part
    elseif holds() then
      return true
    else
      box = part
    end
  end
  return holds() or false
end
