-- Take a session out of those that use a trace. Its own bindings go; with the last session goes all
-- that is kept of the trace. A binding that was saved again since it was read stays. Once per call.
-- KEYS sessions             zset: session_id -> expiry in us: who uses the trace
-- KEYS events.rows          stream: its events
-- KEYS events.ids           hash: their ids
-- KEYS planner_events.rows  stream: its planner events
-- KEYS planner_events.ids   hash: their ids
-- KEYS unreadable           hash: what was set aside of them
-- KEYS bindings             zset: binding -> expiry in us
-- KEYS binding_keys..       long: hashes: write; the session's own come first
-- ARGV session              the session's id
-- ARGV keeps                flag: what is kept of the trace stays when no session uses it
-- ARGV own                  int: how many of the bindings are the session's
-- ARGV read..               long: each binding's name in the index and the write that it was read at, in turn
-- Returns
--   {'OK', others}  how many sessions still use the trace; one more if it stays
-- @include now_us
-- @include log_drop
-- @once
-- @idempotent

redis.call('ZREM', sessions, session)
redis.call('ZREMRANGEBYSCORE', sessions, '-inf', string.format('(%.0f', now_us()))
local others = redis.call('ZCARD', sessions) + (keeps and 1 or 0)
local all = #binding_keys - binding_keys_from + 1
for i = 0, (others == 0 and all or own) - 1 do
  local binding, at = binding_keys[binding_keys_from + i], read_from + 2 * i
  local member, write = read[at], read[at + 1]
  if (redis.call('HGET', binding, 'write') or '') == write then
    redis.call('DEL', binding)
    redis.call('ZREM', bindings, member)
  end
end
if others == 0 then
  log_drop(events.rows, events.ids)
  log_drop(planner_events.rows, planner_events.ids)
  redis.call('DEL', unreadable)
end
return keep_reply({ 'OK', others })
