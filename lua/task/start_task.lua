-- Take a task's lease and set it running, or say why not. A running task whose lease has run out
-- is taken over, and its holder counted as dead.
-- KEYS task                     hash: version, write, order, status, attempts, crashes, retired, epoch, format and
--   the fields given
-- KEYS tasks                    zset: task_id -> expiry in us
-- KEYS lease                    hash: owner, claim, epoch, expires
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS journal                  hash: entry -> JSON, entries; there if an earlier run has recorded something
-- KEYS steering.ids             hash: ids of the session's steering, '' -> head; the task's index is there if it was
--   steered
-- ARGV announcement.channel     channel
-- ARGV owner                    id of this claim
-- ARGV lease_ms                 int: until it expires unless renewed
-- ARGV write                    id of this call
-- ARGV ttl_ms                   int: of the task, and of the lease's epoch
-- ARGV task_id                  the task's id
-- ARGV reads                    int: the latest format of records that the worker reads
-- ARGV claimed                  int: when its job was claimed, in ms; '' if that is no permit
-- ARGV portion                  int: how many entries of the journal are fetched at a time
-- ARGV most_bytes               int: no entry more of it once the notes have so many; others wait meanwhile
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of the start; a 0 at its end becomes the epoch
-- ARGV fields..                 names and values, in turn
-- Returns
--   {'OK', epoch, fields, recorded, steered, dropped, read}  it is running under this epoch; the task's fields and
--     values in turn; whether there is a journal, and steering; whether steering of the session was dropped since the
--     task was made; what read_journal returns behind its word, a long journal's beginning; {} if it has not been read
--   {'HELD', left_ms}      another worker runs it
--   {'DENIED', status}     it is in another state
--   {'DENIED', 'newer'}    a later version of the library has written it; nothing was written
--   {'MISSING'}            no such task
-- Emits the update on channel
-- @include now_ms
-- @include is_ahead
-- @include lease_next
-- @include record_write
-- @include announce
-- @include log_head
-- @include topic_index
-- @include journal_names
-- @include journal_portion
-- @include unless_refused

local was = redis.call('HMGET', task, 'status', 'write', 'retired', 'epoch', 'format', 'order')
local holder = redis.call('HGET', lease, 'owner') or ''
local again = was[2] == write or (was[1] == 'RUNNING' and holder == owner)
if not was[1] then return { 'MISSING' } end
if was[1] ~= 'PENDING' and was[1] ~= 'RUNNING' then return { 'DENIED', was[1] } end
if was[5] and tonumber(was[5]) > reads then return { 'DENIED', 'newer' } end
local now, retired = now_ms(), tonumber(was[3] or 0)
-- Its permit may be another's. A mark from before the clock was set back says nothing of a claim made since.
local known = is_ahead(claimed or 0, now) == is_ahead(retired, now)
if holder ~= owner and claimed and claimed <= retired and known then return { 'DENIED', was[1] } end
-- Before the first write, as the announcement: what is damaged leaves the task and its lease as they are.
local sent = redis.call('HMGET', steering.ids, '', topic_field(task_id))
-- The lease of a task that waited for long is gone, but not its epoch.
local epoch, left_ms = lease_next(lease, owner, now, was[4])
if not epoch then return { 'HELD', left_ms } end
if not again then
  announcement.row = string.gsub(announcement.row, ',0%]$', string.format(',%.0f]', epoch))
  announce(announcement, task_id, now)
end
lease_write(lease, owner, epoch, lease_ms, ttl_ms, now)
if not again then
  redis.call('HINCRBY', task, 'attempts', 1)
  if was[1] == 'RUNNING' and holder ~= '' then redis.call('HINCRBY', task, 'crashes', 1) end
  record_write(task, { key = tasks, member = task_id }, write, ttl_ms, fields)
end
local head = log_head(sent[1] or nil)
local dropped = head.first > 1 and head.before_ms * 1000 >= tonumber(was[6] or 0)
local kind, read = redis.call('TYPE', journal)['ok'], {}
-- read_journal reports what is damaged, and what this user may not read.
if kind == 'hash' then
  unless_refused(function()
    local notes, left = journal_portion(journal, journal_names(journal), 1, portion, most_bytes)
    local ends = redis.call('PEXPIRETIME', task)
    if ends > 0 then redis.call('PEXPIREAT', journal, ends) end
    local count = tonumber(redis.call('HGET', journal, 'entries') or 0)
    if count then read = { notes, count, left } end
  end, 'HKEYS', journal)
end
return { 'OK', epoch, redis.call('HGETALL', task), kind ~= 'none' and 1 or 0, sent[2] and 1 or 0, dropped and 1 or 0, read }
