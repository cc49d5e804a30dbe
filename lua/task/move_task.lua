-- Move a task from one state to another and publish that in its session's updates, in one step. The end
-- of a child is recorded in its parent's journal, unless that is damaged, for as long as the parent may need it. A
-- task that is given up is moved although its session's updates are damaged. A repetition finds its write, or another
-- status: it changes nothing.
-- KEYS task                     hash: version, write, order, status, finished, crashes, parent_order and the fields
--   given
-- KEYS tasks                    zset: task_id -> expiry in us
-- KEYS lease                    hash: owner, claim, epoch, expires
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS journal                  hash: entry -> JSON, entries; lives as long as the task
-- KEYS parent.task              hash: order, finished; another key without one
-- KEYS parent.journal           hash: end:<child> -> JSON; likewise
-- ARGV announcement.channel     channel
-- ARGV mark                     of the mover's lease, '' for none
-- ARGV from_states              the states it may be in, each between spaces
-- ARGV release                  flag: give the lease back
-- ARGV silent                   flag: move it also if it cannot be announced
-- ARGV write                    id of this call
-- ARGV ttl_ms                   int: of the task
-- ARGV hold_ms                  int: how long a task that ends is held for the archive, 0 for none
-- ARGV task_id                  the task's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of the move
-- ARGV ended                    JSON: the end of a child, for its parent; '' for none
-- ARGV fields..                 names and values, in turn
-- Returns
--   {'OK', version, epoch}  it is moved
--   {'DENIED', status}      it is in another state; nothing was written
--   {'LOST', epoch}         another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
--   {'MISSING'}             no such task
-- Emits the update on channel
-- @include now_ms
-- @include journal_fence
-- @include record_write
-- @include announce
-- @include archive_ended

local current = tonumber(redis.call('HGET', lease, 'epoch') or 0)
local was = redis.call('HMGET', task, 'status', 'write', 'version', 'parent_order')
if not was[1] then return { 'MISSING' } end
if was[2] == write then return { 'OK', tonumber(was[3]), current } end
local lost = journal_fence(lease, mark, journal)
if lost then return lost end
if not string.find(from_states, ' ' .. was[1] .. ' ', 1, true) then return { 'DENIED', was[1] } end
local now = now_ms()
-- An append that is refused leaves nothing behind.
if silent then pcall(announce, announcement, task_id, now) else announce(announcement, task_id, now) end
-- Its worker lives, so those that died before are forgotten, unless the fields say otherwise.
if release then redis.call('HDEL', task, 'crashes') end
local version = record_write(task, { key = tasks, member = task_id }, write, ttl_ms, fields)
redis.call('PEXPIRE', journal, ttl_ms)
archive_ended(task, tasks, journal, task_id, announcement, hold_ms, now)
if release and current > 0 then redis.call('HSET', lease, 'owner', '', 'expires', 0) end
-- As long as the record: a task of this id that comes later begins with an epoch of its own time.
if current > 0 then redis.call('PEXPIRE', lease, ttl_ms) end
local is = ended ~= '' and redis.call('HMGET', parent.task, 'order', 'finished') or {}
if is[1] and is[1] == was[4] and is[2] ~= '1' then
  local life_ms = redis.call('PTTL', parent.task)
  -- A damaged journal is the parent's trouble, and ends it when it is read. A repaired one finds the child's record.
  local written = redis.pcall('HSET', parent.journal, 'end:' .. task_id, ended)
  if type(written) ~= 'table' and redis.call('PTTL', parent.journal) < life_ms then
    redis.call('PEXPIRE', parent.journal, life_ms)
  end
end
return { 'OK', version, current }
