-- Delete an A2A task. What is left says for a while that it was deleted: nobody writes it anew by
-- mistake, and who watches it learns of the end. A repetition finds its own mark.
-- KEYS[1] task     hash: state, phase, version, at, body
-- KEYS[2] index    zset: order and id, all of score 0
-- KEYS[3] places   hash: id -> context, state and time
-- KEYS[4] expiry   zset: id -> when, in ms
-- KEYS[5] rows     stream: id, topic, row; entry <version>-<ms>
-- KEYS[6] ids      hash: write -> version; '' -> head
-- KEYS[7] channel  pub/sub
-- KEYS[8] lease    hash: owner, epoch, expires
-- KEYS[9] configs  hash: push configurations; may be absent
-- ARGV[1] write    id of this call
-- ARGV[2] id       of the task
-- ARGV[3] ttl_ms   how long is said that it was deleted
-- Returns
--   {'OK', version}   it is deleted
--   {'MISSING'}       there was none
-- Emits the row 'g' on channel
-- @include now_ms
-- @include log_append
-- @include a2a_books
-- @include a2a_done
-- @include a2a_lease
-- @include a2a_number
local task, index, places, expiry, channel, lease = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[7], KEYS[8]
local log = { rows = KEYS[5], ids = KEYS[6], topic_rows = KEYS[5], channel = channel, topic = '', max_rows = 1 }
local configs = KEYS[9]
local write, id, ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local now = now_ms()
local was = redis.call('HMGET', task, 'version', 'phase', 'at')
local done = a2a_done(log, write)
if done then return { 'OK', done } end
if not was[1] or was[2] == 'g' then return { 'MISSING' } end
a2a_number(log, tonumber(was[1]), now, 'e')
log.ttl_ms = ttl_ms
local version, _, at = log_append(log, write, 'g', now)
-- Its earlier events go, however many there are.
local head = log_head(redis.call('HGET', log.ids, ''))
head.first, head.first_ms, head.before_ms = version, tonumber(at), tonumber(was[3])
redis.call('XTRIM', log.rows, 'MINID', string.format('%.0f', version))
redis.call('DEL', log.ids)
redis.call('HSET', log.ids, '', log_text(head), write, version)
redis.call('PEXPIREAT', log.ids, string.format('%.0f', head.expires))
redis.call('HDEL', task, 'body', 'announce')
redis.call('DEL', configs)
redis.call('HSET', task, 'state', '-', 'phase', 'g', 'version', version, 'at', at)
redis.call('PEXPIRE', task, ttl_ms)
a2a_forget({ index = index, places = places, expiry = expiry }, id)
a2a_lease(lease, '', now, 0, ttl_ms)
return { 'OK', version }
