-- Take what is due from a watch list, and put it off so that one sweeper at a time looks at it.
-- KEYS watch    zset: entry -> when, in ms
-- KEYS clock    string: when the list was last written, in ms
-- KEYS about    hash: id -> what the index of tasks knows; another key for a list of other things
-- ARGV indexed  flag: of tasks
-- ARGV limit    int: entries at most; more by a quarter of what is checked only, and by one of what was found ended
-- ARGV hold_ms  int: until an entry is due again, unless it is taken out or put off
-- Returns
--   {'OK', mark, entry, was, stamp, ...}  the time that they have now; what was due, the longest due first,
--                    then those that are checked only, and then those found ended, each with the time that it had and,
--                    of tasks, what the index knows of it
-- @include now_ms
-- @include watch_clock
-- @include watch_band
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
local due = {}
for band = 0, 2 do
  -- Each has the room that those before leave, and some in any case: its entries must have their turn too.
  local from, room = watch_band(band), math.max(limit - #due / 2, math.ceil(limit / 4))
  local found = redis.call('ZRANGEBYSCORE', watch, band == 0 and '-inf' or string.format('%.0f', from),
    string.format('%.0f', from + now), 'WITHSCORES', 'LIMIT', 0, room)
  for i = 1, #found do due[#due + 1] = found[i] end
end
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
