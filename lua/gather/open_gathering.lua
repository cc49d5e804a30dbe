-- Write a new pending task down whose input is open, with its first item. A repetition finds the task.
-- KEYS keys.task           hash: version, write, order and the fields given, inbox, gathers, items, item_bytes,
--   item:1, due, latest
-- KEYS keys.tasks          zset: task_id -> expiry in us
-- KEYS keys.journal        hash: entry -> JSON
-- KEYS steering.ids        hash: ids of the session's steering
-- KEYS keys.lease          hash: epoch; there if an earlier task of this id ran
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS children            zset: what an earlier task of this id has spawned
-- KEYS gathering           hash: name -> the task whose input is open; name:item -> the task that has the item;
--   =name:item -> what the item was
-- KEYS items               zset: name, name:item -> until when it is remembered, in ms
-- KEYS turn                zset: task_id -> its place in the line, in ms; another key without one
-- ARGV announcement.channel     channel
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of the new task
-- ARGV write               id of this call
-- ARGV ttl_ms              int: milliseconds
-- ARGV task_id             the task's id
-- ARGV before              int: ms, by when it must be written
-- ARGV name                of what is gathered
-- ARGV closed              the task whose input was found closed, '' for none
-- ARGV item_id             of the item, '' for none
-- ARGV item                JSON
-- ARGV sent                by what a repetition of the item is known, '' for nothing
-- ARGV after_ms            int: until the task is due
-- ARGV latest_ms           int: until it is due at the latest
-- ARGV keep_ms             int: how long the item is remembered
-- ARGV in_turn             flag: its session's tasks run in turn
-- ARGV earlier_ms          int: what its priority is worth
-- ARGV fields..            names and values, in turn
-- Returns
--   {'OK', version, due}  it is written; when it is due, in ms
--   {'STALE', version}    there is one; nothing was written
--   {'EXPIRED'}           it is too late; nothing was written
--   {'HELD', task_id, sent}  this task has the item already, which was this; nothing was written
--   {'AGAIN'}             another task's input was opened; nothing was written
-- Emits the update on channel
-- @include now_ms
-- @include task_new
-- @include turn_list
-- @include gather_item

local known, mine = task_known(keys.task, write)
if known and not mine then return { 'STALE', known } end
if known then return { 'OK', known, redis.call('HGET', keys.task, 'due') } end
local now = now_ms()
if now > before then return { 'EXPIRED' } end
local has = item_id ~= '' and redis.call('HGET', gathering, name .. ':' .. item_id)
if has then return { 'HELD', has, gather_sent(gathering, name, item_id) } end
if (redis.call('HGET', gathering, name) or '') ~= closed then return { 'AGAIN' } end
local due = string.format('%.0f', now + after_ms)
for _, value in ipairs({ 'gathers', name, 'items', 1, 'item_bytes', #item, 'item:1', item, 'due', due,
  'latest', string.format('%.0f', now + latest_ms) }) do fields[#fields + 1] = value end
local version = task_new(keys, children, steering, announcement, fields, write, ttl_ms, task_id, now)
gather_item(gathering, items, name, item_id, sent, task_id, now, keep_ms)
if in_turn then turn_put(turn, task_id, now + after_ms - earlier_ms, 2 * ttl_ms) end
return { 'OK', version, due }
