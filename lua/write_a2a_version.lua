-- Write the next version of an A2A task: the task, its places in the list, its event and its lease.
-- KEYS[1] task     hash: state, phase, version, at, body, announce
-- KEYS[2] index    zset: order and id, all of score 0
-- KEYS[3] places   hash: id -> context, state and time
-- KEYS[4] expiry   zset: id -> when, in ms
-- KEYS[5] rows     stream: id, topic, row; entry <version>-<ms>
-- KEYS[6] ids      hash: write -> version; '' -> head
-- KEYS[7] channel  pub/sub
-- KEYS[8] lease    hash: owner, epoch, expires
-- KEYS[9] configs  hash: push configurations; may be absent
-- ARGV[1] rule     the version it must have and, after a space, when that was written; the version
--   alone; 0 for absent; 'open' unless it has ended; 'any' unless it would leave an end; 'told' to tell
--   an event without a change
-- ARGV[2] write    id of this call
-- ARGV[3] id       of the task
-- ARGV[4] row      phase and event
-- ARGV[5] state    of the task
-- ARGV[6] phase    o: it is worked on, w: it waits for somebody, e: it has ended
-- ARGV[7] place    context, state and time, between spaces
-- ARGV[8] body     opaque
-- ARGV[9] ttl_ms   milliseconds
-- ARGV[10] max_rows of its events
-- ARGV[11] owner   who works on it, '' for nobody
-- ARGV[12] lease_ms  until the owner is taken for dead
-- ARGV[13] keep_ms  how long an epoch is remembered after its lease
-- ARGV[14] epoch   of the lease that must have run out, '' if that does not matter
-- ARGV[15] announce  1 to note that this end is to be announced, '' if not
-- Returns
--   {'OK', version, at, epoch}
--   {'STALE', version, at}   it is at another version
--   {'DENIED', state}        it has ended, or was deleted: '-'
--   {'HELD', epoch}          the lease has not run out, or is another one by now
--   {'MISSING'}              there is no such task
-- Emits the row on channel
-- @include now_ms
-- @include log_append
-- @include a2a_books
-- @include a2a_done
-- @include a2a_lease
-- @include a2a_number
-- @include stale
local task, index, places, expiry, channel, lease = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[7], KEYS[8]
local log = { rows = KEYS[5], ids = KEYS[6], topic_rows = KEYS[5], channel = channel, topic = '' }
local rule, write, id, row, state, phase = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local place, body, ttl_ms, max_rows = ARGV[7], ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
local owner, lease_ms, keep_ms, epoch = ARGV[11], tonumber(ARGV[12]), tonumber(ARGV[13]), ARGV[14]
local configs, announce = KEYS[9], ARGV[15]

local now = now_ms()
local was = redis.call('HMGET', task, 'state', 'phase', 'version', 'at')
local version = tonumber(was[3] or 0)
local done, at = a2a_done(log, write)
if done then return { 'OK', done, at, tonumber(redis.call('HGET', lease, 'epoch') or 0) } end
if was[2] == 'g' then return { 'DENIED', was[1] } end
if not was[1] and (rule == 'open' or rule == 'told') then return { 'MISSING' } end
if was[2] == 'e' and not (rule == 'any' and was[1] == state) then return { 'DENIED', was[1] } end
local other = string.find(rule, '^%d') and stale(rule, was[3], was[4])
if other then return other end
if epoch ~= '' then
  local current = a2a_dead(lease, now)
  if current ~= epoch then return { 'HELD', tonumber(current or 0) } end
end
a2a_number(log, version, now, phase)
-- At its end no row of a task is too old: they live as long as its end says.
log.max_rows, log.ttl_ms, log.keeps_old = max_rows, ttl_ms, phase == 'e'
local number, _, written = log_append(log, write, row, now)
redis.call('HSET', task, 'version', number, 'at', written)
if rule ~= 'told' then redis.call('HSET', task, 'state', state, 'phase', phase, 'body', body) end
if announce ~= '' then redis.call('HSET', task, 'announce', announce) end
local ends = now + ttl_ms
for _, key in ipairs({ task, configs }) do redis.call('PEXPIREAT', key, string.format('%.0f', ends)) end
local books = { index = index, places = places, expiry = expiry }
a2a_sweep(books, now, 20)
if rule == 'told' then place = redis.call('HGET', places, id) or '' end
if place ~= '' then a2a_place(books, id, place, ends) end
return { 'OK', number, tonumber(written), a2a_lease(lease, rule == 'told' and '-' or owner, now, lease_ms, keep_ms) }
