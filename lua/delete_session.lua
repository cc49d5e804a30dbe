-- Delete an agent's session, and its places in the listing, once per call.
-- KEYS[1] session  hash: created, tags
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] index    zset: <tag>:<created>:<id>, by name
-- KEYS[4] expiries zset: <created>:<id> <tags> -> when it expires in ms
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] id       of the session
-- Returns
--   {'OK', deleted}  1 if there was one
-- @include call_noted
-- @include call_note
-- @include session_unlist
-- @idempotent
local session, call, index, expiries = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local keep_ms, id = ARGV[1], ARGV[2]

local done = call_noted(call)
if done then return done end
local was = redis.call('HMGET', session, 'created', 'tags')
if was[1] then session_unlist(index, expiries, was[1] .. ':' .. id .. ' ' .. was[2]) end
return call_note(call, keep_ms, { 'OK', redis.call('UNLINK', session) })
