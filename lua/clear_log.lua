-- Drop every row of a log, once per call. Its numbers go on, so that no cursor can point into another
-- life.
-- KEYS[1] rows     stream: id, topic, row
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] ids      hash: entry id -> n; '' -> head
-- KEYS[4..] topics lists: n of the rows of a topic
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- Returns
--   {'OK', dropped}  how many rows there were
-- @include call_noted
-- @include call_note
-- @include log_drop
-- @idempotent
local rows, call, ids = KEYS[1], KEYS[2], KEYS[3]
local keep_ms = ARGV[1]

local done = call_noted(call)
if done then return done end
for topic = 4, #KEYS do redis.call('UNLINK', KEYS[topic]) end
return call_note(call, keep_ms, { 'OK', log_drop(rows, ids) })
