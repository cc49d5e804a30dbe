-- Create a child of a running task, once per entry of that task's journal, and publish that.
-- KEYS task                     hash: version, write, order, status, parent_order and the fields given: the child
-- KEYS tasks                    zset: task_id -> expiry in us
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS parent.task              hash: status, order
-- KEYS parent.lease             hash: epoch, claim: the parent's
-- KEYS parent.journal           hash: entry -> JSON, lane:<name> -> JSON, entries: the parent's
-- KEYS children                 zset: task_id -> expiry in us: the parent's
-- ARGV announcement.channel     channel
-- ARGV mark                     of the parent's lease
-- ARGV entry                    of the parent's journal
-- ARGV note                     JSON, for the parent's journal
-- ARGV before                   int: ms, by when it must be written
-- ARGV write                    id of this call
-- ARGV ttl_ms                   int: of the child
-- ARGV index_ttl_ms             int: of the parent's index
-- ARGV task_id                  the child's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the child's update: that it is PENDING
-- ARGV announcement.other_id    update id
-- ARGV announcement.other       the parent's update, which names the child; before the child's
-- ARGV parent.task_id           the parent's id
-- ARGV lane.entry               entry of the parent's journal, '' for none
-- ARGV lane.state               JSON: where the lane stands then
-- ARGV fields..                 names and values, in turn
-- Returns
--   {'OK', version, entries}  it is written; how many entries the parent's journal has
--   {'STALE', note}     it was before: what the journal holds; its place in the index is renewed
--   {'EXPIRED'}         it is too late; nothing was written
--   {'DENIED', status}  the parent does not run; nothing was written
--   {'LOST', epoch}     another claim has the parent's lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
-- Emits both updates on channel
-- @include now_ms
-- @include now_us
-- @include journal_fence
-- @include journal_count
-- @include record_write
-- @include announce

local lost = journal_fence(parent.lease, mark, parent.journal)
if lost then return lost end
local now, recorded, entries = now_ms(), unpack(redis.call('HMGET', parent.journal, entry, 'entries'))
local is_new = not recorded
if is_new then
  local is = redis.call('HMGET', parent.task, 'status', 'order')
  if is[1] ~= 'RUNNING' then return { 'DENIED', is[1] or '' } end
  if now > before then return { 'EXPIRED' } end
  -- It is this task's child, and not that of a later task of the same id.
  fields[#fields + 1] = 'parent_order'
  fields[#fields + 1] = is[2] or ''
end
-- A run that comes here again keeps the index alive for as long as the next pause may last.
-- By the microsecond: children are listed in the order in which they were spawned.
redis.call('ZADD', children, string.format('%.0f', now_us() + index_ttl_ms * 1000), task_id)
redis.call('PEXPIRE', children, index_ttl_ms)
local was = redis.call('HMGET', task, 'version', 'write')
if was[2] == write then return { 'OK', tonumber(was[1]), tonumber(entries or 0) } end
if not is_new then return { 'STALE', recorded } end
redis.call('HSET', parent.journal, entry, note)
entries = journal_count(parent.journal, lane.entry, lane.state)
-- A parent that was restored without a lifetime has none to give: a time in the past would delete the journal.
local ends = redis.call('PEXPIRETIME', parent.task)
if ends > 0 then redis.call('PEXPIREAT', parent.journal, ends) end
-- The parent's log names a child before the child says anything.
announcement.topic = parent.task_id
log_append(announcement, announcement.other_id, announcement.other, now)
announce(announcement, task_id, now)
return { 'OK', record_write(task, { key = tasks, member = task_id }, write, ttl_ms, fields), entries }
