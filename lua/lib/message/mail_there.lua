-- Return whether one of several boxes, each between zero bytes, holds a message.
local function mail_there(journal, boxes)
  for box in string.gmatch(boxes, '[^%z]+') do
    if redis.call('HEXISTS', journal, 'box:' .. box) == 1 then return true end
  end
  return false
end
