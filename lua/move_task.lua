-- Move a task from one state to another and say so in its session's updates, in one step. The end of
-- a child is noted in its parent's journal: there it stands for as long as that may ask for it.
-- KEYS[1] task     hash: version, write, order, status, finished, crashes, parent_order and the fields
--   given
-- KEYS[2] tasks    zset: task_id -> expiry in us
-- KEYS[3] lease    hash: owner, claim, epoch, expires
-- KEYS[4] rows     stream of the session's updates
-- KEYS[5] ids      hash: its ids
-- KEYS[6] topic_rows  list: the task's index in it
-- KEYS[7] channel  pub/sub
-- KEYS[8] journal  hash: entry -> JSON, entries; lives as long as the task
-- KEYS[9] parent   hash: order, finished; the task's own for one without a parent
-- KEYS[10] parent_journal  hash: end:<child> -> JSON; likewise
-- ARGV[1] mark     of the mover's lease, '' for none
-- ARGV[2] from     the states it may be in, each between spaces
-- ARGV[3] release  1 to give the lease back
-- ARGV[4] write    id of this call
-- ARGV[5] ttl_ms   of the task
-- ARGV[6] member   the task's id
-- ARGV[7] max_rows of the updates
-- ARGV[8] log_ttl_ms  of the updates
-- ARGV[9] row_id   update id
-- ARGV[10] row     the update that tells of the move
-- ARGV[11] ended    JSON: the end of a child, for its parent; '' for none
-- ARGV[12..] fields names and values, in turn
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
-- @include log_append
local task, tasks, lease, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[8]
local parent, parent_journal = KEYS[9], KEYS[10]
local log = { rows = KEYS[4], ids = KEYS[5], topic_rows = KEYS[6], channel = KEYS[7] }
local mark, from, release, write, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local member, row_id, row = ARGV[6], ARGV[9], ARGV[10]
log.topic, log.max_rows, log.ttl_ms = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local ended, fields = ARGV[11], { unpack(ARGV, 12) }

local current = tonumber(redis.call('HGET', lease, 'epoch') or 0)
local was = redis.call('HMGET', task, 'status', 'write', 'version', 'parent_order')
if not was[1] then return { 'MISSING' } end
if was[2] == write then return { 'OK', tonumber(was[3]), current } end
local lost = journal_fence(lease, mark, journal)
if lost then return lost end
if not string.find(from, ' ' .. was[1] .. ' ', 1, true) then return { 'DENIED', was[1] } end
log_append(log, row_id, row, now_ms())
-- Its worker lives, so those that died before are forgotten, unless the fields say otherwise.
if release == '1' then redis.call('HSET', task, 'crashes', 0) end
local version = record_write(task, { key = tasks, member = member }, write, ttl_ms, fields)
redis.call('PEXPIRE', journal, ttl_ms)
if release == '1' and current > 0 then redis.call('HSET', lease, 'owner', '', 'expires', 0) end
local is = ended ~= '' and redis.call('HMGET', parent, 'order', 'finished') or {}
if is[1] and is[1] == was[4] and is[2] ~= '1' then
  local life_ms = redis.call('PTTL', parent)
  redis.call('HSET', parent_journal, 'end:' .. member, ended)
  if redis.call('PTTL', parent_journal) < life_ms then redis.call('PEXPIRE', parent_journal, life_ms) end
end
return { 'OK', version, current }
