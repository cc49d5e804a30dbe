-- Hand an open seat of a pause to another actor, who has none and never had. A repetition finds it handed on.
-- KEYS task                     hash: status, finished, order
-- KEYS announcement.rows        stream of the session's updates
-- KEYS announcement.ids         hash: its ids
-- KEYS token                    hash: state, order, expires, actor, at, decision, seat:<actor>
-- ARGV announcement.channel     channel
-- ARGV actor                    whose seat it is
-- ARGV to                       who gets it
-- ARGV most                     int: fields that the token may have
-- ARGV task_id                  the task's id
-- ARGV announcement.max_rows    int: of the updates
-- ARGV announcement.ttl_ms      int: of the updates
-- ARGV announcement.row_id      update id
-- ARGV announcement.row         the update that tells of it
-- Returns
--   {'OK'}                       it is handed on, by this call or an earlier one
--   {'TAKEN', by, at, decision}  the pause is decided
--   {'EXPIRED'}                  nobody decided in time
--   {'MISSING'}                  no such pause, or its trace is gone
--   {'DENIED', status}           the task is over
--   {'REFUSED', seat, of_to}     the actor has no open seat; or `to` has a seat, or the pause is full; both are
--                                '' for none, and of_to is 'full' for a full pause
-- Emits the update on channel
-- @include now_ms
-- @include announce

local now = now_ms()
local was = redis.call('HMGET', task, 'status', 'finished', 'order')
local held = redis.call('HMGET', token, 'state', 'order', 'expires', 'seat:' .. actor, 'seat:' .. to, 'actor', 'at', 'decision')
if not was[1] or not held[1] or held[2] ~= was[3] then return { 'MISSING' } end
if held[1] == 'resolved' then return { 'TAKEN', held[6], tonumber(held[7]), held[8] } end
if was[2] == '1' then return { 'DENIED', was[1] } end
if tonumber(held[3]) <= now then return { 'EXPIRED' } end
if string.match(held[4] or '', '^delegated %d+ (.*)$') == to then return { 'OK' } end
if held[4] ~= 'open' or held[5] then return { 'REFUSED', held[4] or '', held[5] or '' } end
if redis.call('HLEN', token) >= most then return { 'REFUSED', 'open', 'full' } end
-- Not by a format of its own: that ends a text at its first NUL.
local handed_on = 'delegated ' .. string.format('%.0f', now) .. ' ' .. to
redis.call('HSET', token, 'seat:' .. actor, handed_on, 'seat:' .. to, 'open')
announce(announcement, task_id, now)
return { 'OK' }
