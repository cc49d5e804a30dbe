-- Run a command that removes, once per call: what another client writes before a repetition stays.
-- KEYS[1] key      string, or whatever the command takes
-- KEYS[2] call     string: this call's reply, if it was here before
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] verb     of a command whose reply is a number
-- ARGV[3..] arguments  that follow the key
-- Returns
--   {'OK', reply}    what the command gave; a long one is run in portions, and this is the sum
-- @include call_noted
-- @include call_note
-- @idempotent
local key, call = KEYS[1], KEYS[2]
local keep_ms, verb, portion = ARGV[1], ARGV[2], 1000

local done = call_noted(call)
if done then return done end
local reply = 0
for first = 3, math.max(#ARGV, 3), portion do
  reply = reply + redis.call(verb, key, unpack(ARGV, first, math.min(first + portion - 1, #ARGV)))
end
return call_note(call, keep_ms, { 'OK', reply })
