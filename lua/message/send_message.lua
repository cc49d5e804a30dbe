-- Put a message into the mailbox of a task, once per id, and set the task pending if it waits for one
-- of that box. A repetition finds the id.
-- KEYS task                     hash: version, write, order, status, finished, attempts, job, waits_box,
--   waits_for, pause_token and the fields given
-- KEYS tasks                    zset: task_id -> expiry in us
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS journal                  hash: mailed:<size>:<box><id> -> what was sent, box:<box> -> taken
--   and sent,
--   mail:<n>:<box> -> JSON, mail -> count and bytes; lives as long as the task
-- ARGV announcement.channel     channel
-- ARGV live                     channel: of who waits in a running task
-- ARGV covered                  flag: the watch list has the task
-- ARGV box                      kind and name of the message
-- ARGV message_id               of the message, in its box
-- ARGV message                  JSON: id, sender, payload; without the bracket at its begin
-- ARGV sent                     by what a repetition is known, or 1
-- ARGV most                     int: how many messages may wait
-- ARGV most_bytes               int: how large they may be together
-- ARGV write                    id of this call
-- ARGV ttl_ms                   int: of the task
-- ARGV task_id                  the task's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells that the task goes on
-- ARGV fields..                 names and values, in turn
-- Returns
--   {'OK', 1, status}    it is there; the task's status now
--   {'OK', 0, status, sent}  it was there; what was sent under the id
--   {'HELD'}             the task waits for it, and the watch list must have it first; nothing was written
--   {'FULL', count}      too many wait, or too large ones; nothing was written
--   {'DENIED', status}   the task is over; nothing was written
--   {'MISSING'}          no such task, or one that no worker runs
-- Emits the update on channel, the box on live
-- @include now_ms
-- @include record_write
-- @include announce
-- @include mail
-- @lasting

local was = redis.call('HMGET', task, 'status', 'finished', 'job', 'waits_box', 'waits_for', 'pause_token')
local status, known = was[1], string.format('mailed:%d:', #box) .. box .. message_id
if not status or not was[3] then return { 'MISSING' } end
local before = redis.call('HGET', journal, known)
if before then return { 'OK', 0, status, before } end
if was[2] == '1' then return { 'DENIED', status } end
local count, bytes = mail_total(journal)
if count >= most or bytes + #message > most_bytes then return { 'FULL', count } end
local wakes = status == 'PAUSED' and mail_waits(was[4], was[5], was[6], box)
if wakes and not covered then return { 'HELD' } end
local now = now_ms()
-- What a server may refuse is first.
redis.call('SPUBLISH', live, box)
if wakes then announce(announcement, task_id, now) end
mail_put(journal, box, string.format('[1,%.0f,', now) .. message, count, bytes)
redis.call('HSET', journal, known, sent)
if wakes then
  status = 'PENDING'
  record_write(task, { key = tasks, member = task_id }, write, ttl_ms, fields)
end
-- One that was restored without a lifetime has none to give: a time in the past would delete the journal.
local ends = redis.call('PEXPIRETIME', task)
if ends > 0 then redis.call('PEXPIREAT', journal, ends) end
return { 'OK', 1, status }
