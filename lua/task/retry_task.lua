-- Reopen a task that is FAILED or CANCELLED, with its journal, and publish that. A repetition of the call, or
-- of its key, finds it done. The worker that ran it before can write no more.
-- KEYS task                     hash: version, write, order, status, attempts, retries, retried and the fields given
-- KEYS tasks                    zset: task_id -> expiry in us
-- KEYS lease                    hash: owner, claim, epoch, expires
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS journal                  hash: entry -> JSON; lives as long as the task
-- KEYS children                 zset: task_id -> expiry in us: the tasks that it has spawned
-- KEYS turn                     zset: task_id -> its place in the line, in ms; another key without one
-- ARGV announcement.channel     channel
-- ARGV expected                 version and, after a space, its write
-- ARGV key                      of the caller, '' for none
-- ARGV write                    id of this call
-- ARGV ttl_ms                   int: of the task
-- ARGV task_id                  the task's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of it
-- ARGV in_turn                  flag: its session's tasks run in turn
-- ARGV place_ms                 int: its place in that line
-- ARGV dropped..                entries of the journal that the next run is to make anew
-- ARGV fields..                 names and values, in turn
-- Returns
--   {'OK', version}      it is pending
--   {'TAKEN', version}   a call with this key has reopened it before; nothing was written
--   {'STALE', version, write}  the task is at this version; nothing was written
--   {'DENIED', status}   it is in another state; nothing was written
--   {'MISSING'}          no such task that workers run
-- Emits the update on channel
-- @include now_ms
-- @include stale
-- @include record_write
-- @include announce
-- @include turn_list

local was = redis.call('HMGET', task, 'status', 'write', 'version', 'job', 'retried')
if not was[4] then return { 'MISSING' } end
if was[2] == write then return { 'OK', tonumber(was[3]) } end
if key ~= '' and was[5] == key then return { 'TAKEN', tonumber(was[3]) } end
if was[1] ~= 'FAILED' and was[1] ~= 'CANCELLED' then return { 'DENIED', was[1] } end
local other = stale(expected, was[3], was[2])
if other then return other end
announce(announcement, task_id, now_ms())
for first = 1, #dropped, 1000 do
  redis.call('HDEL', journal, unpack(dropped, first, math.min(first + 999, #dropped)))
end
redis.call('HINCRBY', task, 'retries', 1)
redis.call('HSET', task, 'retried', key)
local version = record_write(task, { key = tasks, member = task_id }, write, ttl_ms, fields)
if in_turn then turn_put(turn, task_id, place_ms, 2 * ttl_ms) end
redis.call('PEXPIRE', journal, ttl_ms)
redis.call('PEXPIRE', children, 2 * ttl_ms)
if redis.call('HEXISTS', lease, 'epoch') == 1 then
  redis.call('HINCRBY', lease, 'epoch', 1)
  redis.call('HDEL', lease, 'owner', 'claim')
  redis.call('PEXPIRE', lease, ttl_ms)
end
return { 'OK', version }
