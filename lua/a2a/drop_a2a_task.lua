-- Delete an A2A task with all that belongs to it, once per call. With a tombstone it stays known as
-- deleted for a while: no late write makes it again, and its watchers receive the end.
-- KEYS task            hash: as write_a2a_task writes it
-- KEYS books.index     zset: order and id, all of score 0
-- KEYS books.places    hash: id -> context, state and time
-- KEYS books.expiry    zset: id -> when, in ms
-- KEYS events.rows     stream: id, topic, row; entry <version>-<ms>
-- KEYS events.ids      hash: write -> version; '' -> head
-- KEYS lease           hash: owner, epoch, expires
-- KEYS configs         hash: push configurations; may be absent
-- KEYS history         list: messages; may be absent
-- KEYS artifacts       list: what was added; may be absent
-- ARGV events.channel  channel
-- ARGV write           id of the row that announces the deletion
-- ARGV task_id         of the task
-- ARGV before_us       before which it must have ended; '' for any task
-- ARGV tombstone_ms    int: how long it stays known as deleted, 0 for none
-- Returns
--   {'OK', version}   it is deleted, by this call
--   {'STALE'}         it has not ended before that time; nothing was written
--   {'MISSING'}       there was none, or only remains
-- Emits the row 'g' on channel
-- @include now_ms
-- @include log_append
-- @include a2a_books
-- @include a2a_done
-- @include a2a_lease
-- @include a2a_number
-- @once
-- @idempotent

local log = events
log.topic, log.max_rows = '', 1
local was, now = redis.call('HMGET', task, 'version', 'phase', 'at', 'updated'), now_ms()
local there = was[2] and was[2] ~= 'g'
if before_us ~= '' and there and not (was[2] == 'e' and tonumber(was[4]) < tonumber(before_us)) then return { 'STALE' } end
if not there and tombstone_ms > 0 then return { 'MISSING' } end
if tombstone_ms == 0 then
  a2a_forget(books, task_id)
  redis.call('UNLINK', task, configs, history, artifacts, log.rows, log.ids, lease)
  return keep_reply(there and { 'OK', tonumber(was[1] or 0) } or { 'MISSING' })
end
a2a_number(log, tonumber(was[1] or 0), now, 'e')
log.ttl_ms = tombstone_ms
-- What fails at a key of another type fails before anything is deleted.
local version, _, at = log_append(log, write, 'g', now)
a2a_forget(books, task_id)
redis.call('UNLINK', configs, history, artifacts)
-- Its earlier events go, however many there are.
local head = log_head(redis.call('HGET', log.ids, ''))
head.first, head.first_ms, head.before_ms = version, tonumber(at), tonumber(was[3] or 0)
redis.call('XTRIM', log.rows, 'MINID', string.format('%.0f', version))
redis.call('DEL', log.ids)
redis.call('HSET', log.ids, '', log_text(head), write, version)
redis.call('PEXPIREAT', log.ids, string.format('%.0f', head.expires))
redis.call('DEL', task)
redis.call('HSET', task, 'state', '-', 'phase', 'g', 'version', version, 'at', at)
redis.call('PEXPIRE', task, tombstone_ms)
a2a_lease(lease, '', now, 0, tombstone_ms)
return keep_reply({ 'OK', version })
