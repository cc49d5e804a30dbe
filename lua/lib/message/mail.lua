-- The mailbox of a task, in its journal: how many messages wait and how large they are, in all.
local function mail_total(journal)
  local count, bytes = string.match(redis.call('HGET', journal, 'mail') or '0 0', '^(%d+) (%d+)$')
  return tonumber(count), tonumber(bytes)
end

-- Add a message at the end of its box.
local function mail_put(journal, box, message, count, bytes)
  local taken, sent = string.match(redis.call('HGET', journal, 'box:' .. box) or '0 0', '^(%d+) (%d+)$')
  sent = sent + 1
  redis.call('HSET', journal, 'box:' .. box, string.format('%d %d', taken, sent),
    string.format('mail:%d:', sent) .. box, message, 'mail', string.format('%d %d', count + 1, bytes + #message))
end

-- Return whether a paused task waits for messages, of this box if it is given.
local function mail_waits(boxes, child, token, box)
  if not boxes or boxes == '' or (child or '') ~= '' or (token or '') ~= '' then return false end
  return not box or string.find(boxes, '\0' .. box .. '\0', 1, true) ~= nil
end
