-- Add an item to the input of a task that gathers, as long as the task has not begun: at the end of a batch, or
-- in place of what is there. Once per call.
-- KEYS gathering   hash: name -> the task whose input is open; name:item -> the task that has the item;
--   =name:item -> what the item was
-- KEYS items       zset: name, name:item -> until when it is remembered, in ms
-- KEYS task        hash: status, attempts, gathers, items, item_bytes, item:<n>, due, latest
-- ARGV task_id     the task's id
-- ARGV name        of what is gathered
-- ARGV item_id     of the item, '' for none
-- ARGV item        JSON
-- ARGV sent        by what a repetition of the item is known, '' for nothing
-- ARGV most        int: items of a batch; '' for only the last
-- ARGV most_bytes  int: of all items
-- ARGV after_ms    int: how long the task waits for another one
-- ARGV keep_ms     int: how long the item is remembered
-- Returns
--   {'OK', due, full}  it is in the task's input; when the task is due, in ms; 1 if it takes no more
--   {'HELD', task_id, sent}  this task has the item already, which was this; nothing was written
--   {'AGAIN'}          another task's input is open; nothing was written
--   {'FULL', due}      the task takes no more, and is due
--   {'STALE'}          the task has begun or is gone; nothing was written
-- @include now_ms
-- @include gather_item
-- @once

local has = item_id ~= '' and redis.call('HGET', gathering, name .. ':' .. item_id)
if has then return keep_reply({ 'HELD', has, gather_sent(gathering, name, item_id) }) end
if redis.call('HGET', gathering, name) ~= task_id then return keep_reply({ 'AGAIN' }) end
local was = redis.call('HMGET', task, 'status', 'attempts', 'gathers', 'items', 'item_bytes', 'due', 'latest')
if was[1] ~= 'PENDING' or tonumber(was[2] or 0) > 0 or was[3] ~= name then return keep_reply({ 'STALE' }) end
local now, count, bytes = now_ms(), tonumber(was[4]) + 1, tonumber(was[5]) + #item
local due = tonumber(was[6])
if most and (count > most or bytes > most_bytes) then
  redis.call('HSET', task, 'due', string.format('%.0f', math.min(due, now)))
  return keep_reply({ 'FULL', string.format('%.0f', math.min(due, now)) })
end
local full = most and count >= most
if full then due = math.min(due, now) end
if not most then count, bytes, due = 1, #item, math.max(due, math.min(now + after_ms, tonumber(was[7]))) end
local due_text = string.format('%.0f', due)
redis.call('HSET', task, 'item:' .. count, item, 'items', count, 'item_bytes', bytes, 'due', due_text)
gather_item(gathering, items, name, item_id, sent, task_id, now, keep_ms)
return keep_reply({ 'OK', due_text, full and 1 or 0 })
