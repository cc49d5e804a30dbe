-- Give a run the oldest message of a box, once per entry of the journal, or record that none came in
-- time. A repetition finds the entry.
-- KEYS journal     hash: entry -> JSON, place:<entry>, due:<entry> -> ms, asks:<box>, what send_message writes,
--   lane:<name> -> JSON, entries
-- KEYS lease       hash: epoch, claim
-- KEYS task        hash: the journal lives as long as it
-- ARGV mark        of the worker's lease
-- ARGV entry       of the journal
-- ARGV box         kind and name of the message
-- ARGV timeout_ms  int: how long it is waited for, from the first call on
-- ARGV place       int: how much the handler had done before; 0 if that cannot be said
-- ARGV lane.entry  entry of the journal, '' for none
-- ARGV lane.state  JSON: where the lane stands then
-- Returns
--   {'OK', message, entries}  what the journal holds: JSON, null if none came; how many entries it has
--   {'HELD', left_ms}     none is there; how long it is still waited for
--   {'LOST', epoch}       another claim has the lease; nothing was written
--   {'REWOUND', entries}  the server has fewer entries than the run knows; nothing was written
--   {'MISSING'}           no such task
-- @include now_ms
-- @include journal_fence
-- @include journal_count
-- @include mail
-- @lasting

local lost = journal_fence(lease, mark, journal)
if lost then return lost end
local ends = redis.call('PEXPIRETIME', task)
if ends == -2 then return { 'MISSING' } end
local recorded, entries = unpack(redis.call('HMGET', journal, entry, 'entries'))
if recorded then return { 'OK', recorded, tonumber(entries or 0) } end
local taken, sent = string.match(redis.call('HGET', journal, 'box:' .. box) or '0 0', '^(%d+) (%d+)$')
local message, left_ms = 'null', 0
if tonumber(taken) < tonumber(sent) then
  taken = taken + 1
  local mail, count, bytes = string.format('mail:%d:', taken) .. box, mail_total(journal)
  message = redis.call('HGET', journal, mail) or 'null'
  redis.call('HSET', journal, entry, message, 'mail', string.format('%d %d', count - 1, bytes - #message),
    'box:' .. box, string.format('%d %d', taken, sent))
  redis.call('HDEL', journal, mail, taken == tonumber(sent) and 'box:' .. box or mail)
else
  local now = now_ms()
  redis.call('HSETNX', journal, 'due:' .. entry, string.format('%.0f', now + timeout_ms))
  left_ms = tonumber(redis.call('HGET', journal, 'due:' .. entry)) - now
  if left_ms > timeout_ms then
    -- The clock was set back: from now on it waits for its length.
    left_ms = timeout_ms
    redis.call('HSET', journal, 'due:' .. entry, string.format('%.0f', now + timeout_ms))
  end
  if left_ms <= 0 then redis.call('HSET', journal, entry, message) end
end
redis.call('HSET', journal, 'asks:' .. box, 1)
if left_ms <= 0 then
  entries = journal_count(journal, lane.entry, lane.state)
  redis.call('HDEL', journal, 'due:' .. entry)
  if place > 0 then redis.call('HSET', journal, 'place:' .. entry, place) end
end
if ends > 0 then redis.call('PEXPIREAT', journal, ends) end
return left_ms > 0 and { 'HELD', left_ms } or { 'OK', message, entries }
