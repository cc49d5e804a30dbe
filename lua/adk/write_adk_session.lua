-- Append an event to a session of Google's ADK and merge what it changes of the states of the session, the
-- user and the app, in one step. Without an event it creates the session. A repetition finds its write.
-- KEYS session         hash: version, write, order, updated, end, last and of the state s:<name>
-- KEYS user            hash: s:<name>; may be absent
-- KEYS app             hash: s:<name>; may be absent
-- KEYS index           zset: user and session -> expiry in us: the sessions of the app
-- KEYS own             zset: user and session -> expiry in us: those of the user
-- KEYS rows            stream: id, topic, row; entry <n>-<ms>; absent without events
-- KEYS ids             hash: event id -> n; '' -> head; absent without events
-- ARGV channel         channel: unused, for nobody subscribes
-- ARGV expected        version and its write that the session must have; 0 to create it
-- ARGV write           id of this call
-- ARGV member          user and session
-- ARGV updated         the time of the last update, as the caller gives it
-- ARGV ttl_ms          int: milliseconds
-- ARGV max_rows        int: how many events are kept, 0 for no limit
-- ARGV row_id          id of the event, '' to create the session
-- ARGV row             the event
-- ARGV of_session..    names and values of the session's state, in turn
-- ARGV of_user..       of the user's
-- ARGV of_app..        long: of the app's
-- Returns
--   {'OK', version}            the new version
--   {'STALE', version, write}  the session is at this version; nothing was written
--   {'AGAIN', version, write, newest}  an event of this id is there; nothing was written. newest is 1 if the last
--                              write appended it
--   {'MISSING'}                there is no such session; nothing was written
-- @include log_append
-- @include now_us
-- @include record_write
-- @include stale
-- @lasting

local portion = 200
local function merge(key, fields, from)
  for first = from, #fields, portion do
    redis.call('HSET', key, unpack(fields, first, math.min(first + portion - 1, #fields)))
  end
  redis.call('PEXPIRE', key, ttl_ms)
end

local was = redis.call('HMGET', session, 'write', 'version', 'order', 'last')
if was[1] == write then return { 'OK', tonumber(was[2]) } end
if expected ~= '0' and not was[2] then return { 'MISSING' } end
if row_id ~= '' and redis.call('HEXISTS', ids, row_id) == 1 then
  return { 'AGAIN', tonumber(was[2]), was[1], was[4] == row_id and 1 or 0 }
end
local other = stale(expected, was[2], was[1])
if other then return other end
local fields, now = { 'updated', updated }, now_us()
if row_id == '' then
  -- Events of an earlier session of this id may have outlived it.
  redis.call('UNLINK', rows, ids)
else
  local log = {
    rows = rows, ids = ids, channel = channel, topic = '', max_rows = max_rows,
    ttl_ms = ttl_ms, announce = false, keeps_old = true, more = false,
  }
  local n = log_append(log, row_id, row, math.floor(now / 1000))
  fields = { 'updated', updated, 'end', string.format('%.0f', n), 'last', row_id }
end
merge(session, of_session, 1)
merge(user, of_user, 1)
merge(app, of_app, of_app_from)
record_write(session, { key = own, member = member }, write, ttl_ms, {}, was)
return { 'OK', record_write(session, { key = index, member = member }, write, ttl_ms, fields, was) }
