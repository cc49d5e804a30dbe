-- Let an open pause gain further deciders after some time, once, or others in place of those who have not
-- voted. A repetition finds it done.
-- KEYS task                     hash: status, finished, order
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS token                    hash: state, order, opened, expires, approvals, escalated, seat:<actor>
-- ARGV announcement.channel     channel
-- ARGV number                   int: which of the pause's escalations, from 0 on
-- ARGV after_ms                 int: after its opening
-- ARGV replaces                 flag: open seats of others are retired
-- ARGV task_id                  the task's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of it
-- ARGV actors..                 who decides from then on
-- Returns
--   {'OK', done}         how many of the escalations are done now
--   {'STALE', done}      this one was done before
--   {'HELD', left_ms}    it is not due yet
--   {'DENIED', state}    the pause is decided, or nobody decided in time, or its task is over
--   {'MISSING'}          no such pause, or its trace is gone
-- Emits the update on channel
-- @include now_ms
-- @include announce
-- @include pause_seat
-- @include pause_retire

local now = now_ms()
local was = redis.call('HMGET', task, 'status', 'finished', 'order')
local held = redis.call('HMGET', token, 'state', 'order', 'opened', 'expires', 'escalated')
if not was[1] or not held[1] or held[2] ~= was[3] then return { 'MISSING' } end
if held[1] ~= 'open' or was[2] == '1' or tonumber(held[4]) <= now then return { 'DENIED', held[1] } end
local done = tonumber(held[5] or 0)
if done > number then return { 'STALE', done } end
local left_ms = tonumber(held[3]) + after_ms - now
if left_ms > 0 then return { 'HELD', math.min(left_ms, after_ms) } end
announce(announcement, task_id, now)
local kept = {}
for _, actor in ipairs(actors) do kept[pause_seat(token, actor)] = true end
if replaces then pause_retire(token, kept, now) end
redis.call('HSET', token, 'escalated', number + 1)
return { 'OK', number + 1 }
