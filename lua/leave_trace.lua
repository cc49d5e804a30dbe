-- Take a session out of those that use a trace. Its own bindings go; with the last session goes all
-- that is kept of the trace. A binding that was saved again since it was read stays. Once per call.
-- KEYS[1] sessions zset: session_id -> expiry in us: who uses the trace
-- KEYS[2] call     string: this call's reply, if it was here before
-- KEYS[3] event_rows  stream: its events
-- KEYS[4] event_ids   hash: their ids
-- KEYS[5] planner_rows  stream: its planner events
-- KEYS[6] planner_ids   hash: their ids
-- KEYS[7] unreadable  hash: what was set aside of them
-- KEYS[8] index    zset: binding -> expiry in us
-- KEYS[9..] bindings  hashes: write; the session's own come first
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] session  the session's id
-- ARGV[3] own      how many of the bindings are the session's
-- ARGV[4..] read   each binding's name in the index and the write that it was read at, in turn
-- Returns
--   {'OK', others}  how many sessions still use the trace
-- @include now_us
-- @include call_noted
-- @include call_note
-- @include log_drop
-- @idempotent
local sessions, call, event_rows, event_ids = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local planner_rows, planner_ids, unreadable, index = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local keys, bindings = KEYS, 8
local keep_ms, session, own = ARGV[1], ARGV[2], tonumber(ARGV[3])
local given, read = ARGV, 3

local done = call_noted(call)
if done then return done end
redis.call('ZREM', sessions, session)
redis.call('ZREMRANGEBYSCORE', sessions, '-inf', string.format('(%.0f', now_us()))
local others = redis.call('ZCARD', sessions)
for i = 1, others == 0 and #keys - bindings or own do
  local binding, member, write = keys[bindings + i], given[read + 2 * i - 1], given[read + 2 * i]
  if (redis.call('HGET', binding, 'write') or '') == write then
    redis.call('DEL', binding)
    redis.call('ZREM', index, member)
  end
end
if others == 0 then
  log_drop(event_rows, event_ids)
  log_drop(planner_rows, planner_ids)
  redis.call('DEL', unreadable)
end
return call_note(call, keep_ms, { 'OK', others })
