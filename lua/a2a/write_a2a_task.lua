-- Write an A2A task in one step: its fields, its places in the list, its event and its owner's lease.
-- Once per call: a repetition finds its own row, or the task that it created.
-- KEYS task            hash: state, phase, version, at, created, creator, updated, announce and the fields given
-- KEYS books.index     zset: order and id, all of score 0
-- KEYS books.places    hash: id -> context, state and time
-- KEYS books.expiry    zset: id -> when, in ms
-- KEYS events.rows     stream: id, topic, row; entry <version>-<ms>
-- KEYS events.ids      hash: write -> version; '' -> head
-- KEYS lease           hash: owner, epoch, expires
-- KEYS configs         hash: push configurations; may be absent
-- KEYS history         list: messages; may be absent
-- KEYS artifacts       list: what was added, in order; may be absent
-- ARGV events.channel  channel
-- ARGV rule            the version it must have and, after a space, when that was written; the version
--   alone; 0 for absent; 'open' for one that has not ended; 'any' unless that would leave an end
-- ARGV write           id of this call
-- ARGV task_id         of the task
-- ARGV row             phase and event; '' for a write without a version of its own
-- ARGV state           of the task, '' to leave state and phase
-- ARGV phase           o: it is worked on, w: it waits for input, e: it has ended
-- ARGV place           context, state and time, as a2a_place takes them
-- ARGV ttl_ms          int: of the task
-- ARGV max_rows        int: of its events
-- ARGV owner           the server that works on it, '' for none, '-' to leave the lease
-- ARGV lease_ms        int: until the owner counts as dead
-- ARGV keep_ms         int: how long an epoch is remembered after its lease
-- ARGV epoch           of the lease that must have expired, '' if that does not matter
-- ARGV announce        flag: record that this end must be announced, if it had not ended
-- ARGV messages..      appended to the history
-- ARGV parts..         appended to the artifacts
-- ARGV fields..        names and values, in turn
-- Returns
--   {'OK', version, at, epoch}
--   {'TAKEN', version, at, epoch, row}  this call wrote before; the row is the one that it wrote
--   {'STALE', version, at}   it is at another version
--   {'DENIED', state}        it has ended, or was deleted: '-'
--   {'HELD', epoch}          the lease has not expired, or is another one by now
--   {'MISSING'}              there is no such task
-- Emits the row on channel
-- @include now_us
-- @include log_append
-- @include a2a_place
-- @include a2a_done
-- @include a2a_lease
-- @include a2a_number
-- @include stale
-- @each
-- @lasting

local log = events
log.topic = ''
local us = now_us()
local now = math.floor(us / 1000)
local was = redis.call('HMGET', task, 'state', 'phase', 'version', 'at', 'creator')
local version, at = tonumber(was[3] or 0), tonumber(was[4] or 0)
-- The events outlive the task: they do not make it one that is there.
if not was[1] and rule == 'open' then return { 'MISSING' } end
local done, done_at, done_row = a2a_done(log, write)
if done or was[5] == write then
  local current = tonumber(redis.call('HGET', lease, 'epoch') or 0)
  return { 'TAKEN', done or version, done_at or at, current, done_row or row }
end
if was[2] == 'g' then return { 'DENIED', was[1] } end
if was[2] == 'e' and not (rule == 'any' and was[1] == state) then return { 'DENIED', was[1] } end
-- A task without a version is there all the same: it is not at version 0.
local other = string.find(rule, '^%d') and stale(rule, was[1] and (was[3] or '-1'), was[4])
if other then return other end
if epoch ~= '' then
  local current = a2a_dead(lease, now)
  if current ~= epoch then return { 'HELD', tonumber(current or 0) } end
end
if not was[1] then
  redis.call('UNLINK', history, artifacts)
  if row == '' then redis.call('UNLINK', log.rows, log.ids, configs) end
  redis.call('HSET', task, 'created', string.format('%.0f', us), 'creator', write)
end
if row ~= '' then
  a2a_number(log, version, now, phase)
  -- The newest rows live as long as the task.
  log.max_rows, log.ttl_ms, log.keeps_old = max_rows, ttl_ms, true
  local number, _, written = log_append(log, write, row, now)
  version, at = number, tonumber(written)
  redis.call('HSET', task, 'version', number, 'at', written)
end
if state ~= '' then redis.call('HSET', task, 'state', state, 'phase', phase) end
if announce and was[2] ~= 'e' then redis.call('HSET', task, 'announce', '1') end
for _, message in ipairs(messages) do redis.call('RPUSH', history, message) end
for _, part in ipairs(parts) do redis.call('RPUSH', artifacts, part) end
if #fields > 0 then redis.call('HSET', task, unpack(fields)) end
local ends = string.format('%.0f', now + ttl_ms)
for _, key in ipairs({ task, configs, history, artifacts }) do redis.call('PEXPIREAT', key, ends) end
a2a_sweep(books, now, 20)
local updated = a2a_place(books, task_id, place, ends, us)
if updated then redis.call('HSET', task, 'updated', updated) end
return { 'OK', version, at, a2a_lease(lease, owner, now, lease_ms, keep_ms) }
