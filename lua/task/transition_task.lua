-- Move a task that no worker runs from one phase to another and say so in its session's updates, in
-- one step. Its phase is its status, or what a protocol calls it more finely while it has that status. A
-- repetition finds its update, and undoes no later move.
-- KEYS task                     hash: version, write, order, status, attempts, phase and the fields given
-- KEYS tasks                    zset: task_id -> expiry in us
-- KEYS lease                    hash: owner, claim, epoch, expires
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS journal                  hash: entry -> JSON; lives as long as the task
-- ARGV announcement.channel     channel
-- ARGV mark                     of the mover's lease, '' for none
-- ARGV from_phases              the phases it may be in, each between spaces
-- ARGV write                    id of this call
-- ARGV ttl_ms                   int: of the task
-- ARGV hold_ms                  int: how long a worker's task that ends is held for the archive, 0 for none
-- ARGV task_id                  the task's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of the move
-- ARGV status                   that it has then
-- ARGV phase                    that it is in then
-- ARGV fields..                 names and values, in turn
-- Returns
--   {'OK', fields}      it is moved; names and values, in turn
--   {'DENIED', phase}   it is in another phase; nothing was written
--   {'LOST', epoch}     another worker runs it, under this epoch; nothing was written
--   {'MISSING'}         no such task
-- Emits the update on channel
-- @include lease_left
-- @include now_ms
-- @include fence
-- @include record_write
-- @include announce
-- @include archive_ended

local was = redis.call('HMGET', task, 'status', 'phase', 'write', 'attempts')
if not was[1] then return { 'MISSING' } end
-- The call's own update says that it was here before, whatever came since.
if was[3] == write or redis.call('HEXISTS', announcement.ids, announcement.row_id) == 1 then
  return { 'OK', redis.call('HGETALL', task) }
end
local now = now_ms()
local is_held = lease_left(lease, now) > 0
local lost = fence(lease, mark)
if mark == '' and is_held then lost = { 'LOST', tonumber(redis.call('HGET', lease, 'epoch') or 0) } end
if lost then return lost end
-- Who moves it otherwise leaves the phase standing: it is that of its status in its own run.
local run = ':' .. (was[4] or '0') .. ':'
local of, current_phase = string.match(was[2] or '', '^(.*:)(.*)$')
if of ~= was[1] .. run then current_phase = was[1] end
if not string.find(from_phases, ' ' .. current_phase .. ' ', 1, true) then return { 'DENIED', current_phase } end
for _, field in ipairs({ 'status', status, 'phase', status .. run .. phase }) do
  fields[#fields + 1] = field
end
announce(announcement, task_id, now)
record_write(task, { key = tasks, member = task_id }, write, ttl_ms, fields)
redis.call('PEXPIRE', journal, ttl_ms)
archive_ended(task, tasks, journal, task_id, announcement, hold_ms, now)
return { 'OK', redis.call('HGETALL', task) }
