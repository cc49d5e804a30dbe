-- Move a task that no worker runs from one phase to another and say so in its session's updates, in
-- one step. Its phase is its status, or what a protocol calls it more finely while it has that status.
-- KEYS[1] task     hash: version, write, order, status, attempts, phase and the fields given
-- KEYS[2] tasks    zset: task_id -> expiry in us
-- KEYS[3] lease    hash: owner, claim, epoch, expires
-- KEYS[4] rows     stream of the session's updates
-- KEYS[5] ids      hash: its ids
-- KEYS[6] topic_rows  list: the task's index in it
-- KEYS[7] channel  pub/sub
-- KEYS[8] journal  hash: entry -> JSON; lives as long as the task
-- ARGV[1] mark     of the mover's lease, '' for none
-- ARGV[2] from     the phases it may be in, each between spaces
-- ARGV[3] write    id of this call
-- ARGV[4] ttl_ms   of the task
-- ARGV[5] member   the task's id
-- ARGV[6] max_rows of the updates
-- ARGV[7] log_ttl_ms  of the updates
-- ARGV[8] row_id   update id
-- ARGV[9] row      the update that tells of the move
-- ARGV[10] status  that it has then
-- ARGV[11] phase   that it is in then
-- ARGV[12..] fields names and values, in turn
-- Returns
--   {'OK', fields}      it is moved; names and values, in turn
--   {'DENIED', phase}   it is in another phase; nothing was written
--   {'LOST', epoch}     somebody else runs it, under this epoch; nothing was written
--   {'MISSING'}         no such task
-- Emits the update on channel
-- @include lease_left
-- @include now_ms
-- @include fence
-- @include record_write
-- @include log_append
local task, tasks, lease, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[8]
local log = { rows = KEYS[4], ids = KEYS[5], topic_rows = KEYS[6], channel = KEYS[7] }
local mark, from, write, ttl_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local member, row_id, row, status, phase = ARGV[5], ARGV[8], ARGV[9], ARGV[10], ARGV[11]
log.topic, log.max_rows, log.ttl_ms = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local fields = { unpack(ARGV, 12) }

local was = redis.call('HMGET', task, 'status', 'phase', 'write', 'attempts')
if not was[1] then return { 'MISSING' } end
if was[3] == write then return { 'OK', redis.call('HGETALL', task) } end
local now = now_ms()
local is_held = lease_left(lease, now) > 0
local lost = fence(lease, mark)
if mark == '' and is_held then lost = { 'LOST', tonumber(redis.call('HGET', lease, 'epoch') or 0) } end
if lost then return lost end
-- Who moves it otherwise leaves the phase standing: it is that of its status in its own run.
local run = ':' .. (was[4] or '0') .. ':'
local of, current_phase = string.match(was[2] or '', '^(.*:)(.*)$')
if of ~= was[1] .. run then current_phase = was[1] end
if not string.find(from, ' ' .. current_phase .. ' ', 1, true) then return { 'DENIED', current_phase } end
for _, field in ipairs({ 'status', status, 'phase', status .. run .. phase }) do
  fields[#fields + 1] = field
end
log_append(log, row_id, row, now)
record_write(task, { key = tasks, member = member }, write, ttl_ms, fields)
redis.call('PEXPIRE', journal, ttl_ms)
return { 'OK', redis.call('HGETALL', task) }
