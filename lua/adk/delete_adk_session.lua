-- Delete a session of Google's ADK with its events, once per call. The states of its user and its app stay.
-- KEYS session  hash: as write_adk_session writes it
-- KEYS index    zset: user and session -> expiry in us
-- KEYS own      zset: user and session -> expiry in us
-- KEYS rows     stream: events; may be absent
-- KEYS ids      hash: event id -> n; may be absent
-- ARGV member   user and session
-- Returns
--   {'OK', deleted}  1 if there was one
-- @once
-- @idempotent

local there = redis.call('EXISTS', session)
for _, key in ipairs({ index, own }) do redis.call('ZREM', key, member) end
redis.call('UNLINK', session, rows, ids)
return keep_reply({ 'OK', there })
