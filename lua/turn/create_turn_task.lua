-- Write a new pending task down, of a session whose tasks run in turn, and decide what becomes of the others
-- by the policy. What is begun is not stopped here: the record names it as interrupted, for who reads the
-- record. What waits and is replaced is cancelled in this step. A repetition finds the task.
-- KEYS keys.task        hash: version, write, order and the fields given, inbox, due, interrupts
-- KEYS keys.tasks       zset: task_id -> expiry in us
-- KEYS keys.journal     hash: entry -> JSON
-- KEYS steering.ids     hash: ids of the session's steering
-- KEYS keys.lease       hash: epoch; there if an earlier task of this id ran
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS children         zset: what an earlier task of this id has spawned
-- KEYS turn             zset: task_id -> its place in the line, in ms
-- KEYS others..         hashes: for each task that is known to be in the list its record, its journal
-- ARGV announcement.channel     channel
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of the new task
-- ARGV write            id of this call
-- ARGV ttl_ms           int: of the task
-- ARGV task_id          the task's id
-- ARGV before           int: ms, by when it must be written
-- ARGV policy           enqueue, reject, interrupt or replace
-- ARGV delay_ms         int: until it is due
-- ARGV earlier_ms       int: what its priority is worth
-- ARGV life_ms          int: how long the list is kept at least
-- ARGV ended_ms         int: how long a cancelled task is kept
-- ARGV hold_ms          int: how long it is held for the archive, 0 for none
-- ARGV known..          id of each of the others, the id and the row of the update that it is cancelled, in turn
-- ARGV cancelled..      fields of a cancelled task, names and values in turn
-- ARGV fields..         names and values, in turn
-- Returns
--   {'OK', version, due, interrupted, id, version, ...}  it is written; the time in ms that stands for when it
--                        came, '' for now; the tasks to be interrupted, each with its order; those that were
--                        cancelled
--   {'STALE', version}   there is one of the id; nothing was written
--   {'EXPIRED'}          it is too late; nothing was written
--   {'AGAIN'}            there are other tasks than those known; nothing was written
--   {'TAKEN', id, status}  this task is in the way; nothing was written
-- Emits the updates on channel
-- @include now_ms
-- @include task_new
-- @include turn_others
-- @include turn_place
-- @include turn_cancel

local there, mine = task_known(keys.task, write)
if there and not mine then return { 'STALE', there } end
if there then
  local was = redis.call('HMGET', keys.task, 'due', 'interrupts')
  return { 'OK', there, was[1] or '', was[2] and cmsgpack.unpack(was[2]) or {} }
end
local now = now_ms()
if now > before then return { 'EXPIRED' } end
local found = turn_others(turn, policy, others, known, task_id)
if not found then return { 'AGAIN' } end
if policy == 'reject' and found.first then return { 'TAKEN', found.first, found.status } end
local place, due = turn_place(policy, found, now + delay_ms - earlier_ms, delay_ms), ''
if place < now + delay_ms - earlier_ms then
  due = string.format('%.0f', place + earlier_ms)
  fields[#fields + 1], fields[#fields + 2] = 'due', due
end
local stopped = policy == 'interrupt' and found.begun or {}
if #stopped > 0 then
  fields[#fields + 1], fields[#fields + 2] = 'interrupts', cmsgpack.pack(stopped)
end
local version = task_new(keys, children, steering, announcement, fields, write, ttl_ms, task_id, now)
local reply = { 'OK', version, due, stopped }
for _, i in ipairs(policy == 'replace' and found.waiting or {}) do
  reply[#reply + 1] = known[3 * i - 2]
  reply[#reply + 1] =
    turn_cancel(keys.tasks, announcement, others, known, i, cancelled, write, ended_ms, hold_ms, now)
end
for _, id in ipairs(found.over) do redis.call('ZREM', turn, id) end
turn_put(turn, task_id, place, life_ms)
return reply
