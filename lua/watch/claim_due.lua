-- Take what is due from a watch list, and put it off so that one sweeper at a time looks at it.
-- KEYS watch    zset: entry -> when, in ms
-- KEYS clock    string: when the list was last written, in ms
-- KEYS about    hash: id -> what the index of tasks knows; another key for a list of other things
-- ARGV indexed  flag: of tasks
-- ARGV limit    int: entries at most, and a quarter more that were found ended
-- ARGV hold_ms  int: until an entry is due again, unless it is taken out or put off
-- Returns
--   {'OK', mark, entry, was, stamp, ...}  the time that they have now; what was due, the longest due first, and of more
--                    than the limit three quarters the latest ones; then those found ended, each with the time that it had and, of
--                    tasks, what the index knows of it
-- @include now_ms
-- @include watch_clock
-- @include watch_ended
-- @include watch_live
-- @include index_id
-- @include index_doc

local now = now_ms()
-- Nothing is written while there is nothing to do. The lifetime first: behind it a full server lets the rest pass,
-- which adds nothing. Who makes room has to claim.
if tonumber(redis.call('GET', clock) or 0) > now then
  watch_live(watch)
  watch_clock(watch, clock, now)
end
local until_now = string.format('%.0f', now)
local due = redis.call('ZRANGEBYSCORE', watch, '-inf', until_now, 'WITHSCORES', 'LIMIT', 0, limit + 1)
if #due > 2 * limit then
  -- A lease that has just run out does not wait behind all that a pool which was away has to inspect. So what
  -- becomes due meanwhile must not be more than these.
  local latest = math.floor(limit * 3 / 4)
  local others = redis.call('ZREVRANGEBYSCORE', watch, until_now, '-inf', 'WITHSCORES', 'LIMIT', 0, latest)
  for i = 1, #others do due[2 * (limit - latest) + i] = others[i] end
  for i = #due, 2 * limit + 1, -1 do due[i] = nil end
end
-- What was found ended has the room that the others leave, and some in any case: its entries must go too.
local from, room = watch_ended(), math.max(limit - #due / 2, math.ceil(limit / 4))
local ended = redis.call('ZRANGEBYSCORE', watch, string.format('%.0f', from), string.format('%.0f', from + now),
  'WITHSCORES', 'LIMIT', 0, room)
for i = 1, #ended do due[#due + 1] = ended[i] end
-- Half a millisecond off every time that is put: an entry that has this time is this claim's still,
-- and nobody has put it anew since.
local mark = string.format('%.1f', now + hold_ms - 0.5)
local reply = { 'OK', mark }
if #due > 0 then
  watch_live(watch)
  watch_clock(watch, clock, now)
end
for i = 1, #due, 2 do
  redis.call('ZADD', watch, mark, due[i])
  local stamp = indexed and index_stamp(index_doc(about, index_id(due[i]))) or ''
  for _, fact in ipairs({ due[i], due[i + 1], stamp }) do reply[#reply + 1] = fact end
end
return reply
