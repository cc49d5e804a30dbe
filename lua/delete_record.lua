-- Delete a record and its place in an index, or only the place if the record is gone already, once per
-- call.
-- KEYS[1] record   hash
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] index    zset: member -> expiry in us
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] member   in the index, '' for none
-- ARGV[3] only_if_gone  1 to leave an existing record alone
-- Returns
--   {'OK', deleted}  1 if there was a record and it was deleted
-- @include call_noted
-- @include call_note
-- @idempotent
local record, call, index = KEYS[1], KEYS[2], KEYS[3]
local keep_ms, member, only_if_gone = ARGV[1], ARGV[2], ARGV[3]

local done = call_noted(call)
if done then return done end
local there = redis.call('EXISTS', record)
if there == 1 and only_if_gone == '1' then return { 'OK', 0 } end
redis.call('DEL', record)
if member ~= '' then redis.call('ZREM', index, member) end
return call_note(call, keep_ms, { 'OK', there })
