-- List a task where it is found by its status, session, handler and attributes, and record when a process
-- must inspect it. An older version of a task does not replace a newer one, so a repetition does no harm.
-- KEYS watch         zset: entry -> when, in ms
-- KEYS clock         string: when the watch list was last written, in ms
-- KEYS index         zset: a kind and a value, status, time and id, all of score 0
-- KEYS about         hash: id -> what is known of a task
-- KEYS expiry        zset: id -> when it is forgotten, in ms
-- ARGV entry         of the watch list
-- ARGV delay_ms      int: until it must be inspected; '' leaves the watch list as it is
-- ARGV stands        later, given, first or listed: which time of the watch list stands
-- ARGV rule          new: only if it is not listed; move: change the status of one that is; whole: any;
--   is <stamp>: any, if this is what is known of it
-- ARGV status        one letter
-- ARGV version       int: of the task's record
-- ARGV write         of that version
-- ARGV created       int: us
-- ARGV ended         int: us; '' of one that has not ended. A move of the state that is listed keeps its end
-- ARGV ttl_ms        int: until it is forgotten
-- ARGV session       the session's id
-- ARGV task          the task's id
-- ARGV handler       the handler's name
-- ARGV attributes..  each as name=JSON
-- Returns
--   {'OK', when}            it is listed; when it is inspected, in ms, or -1
--   {'STALE', when, stamp}  a later version is listed, or other than was expected
--   {'MISSING', when}       it is to be moved, and not listed
-- @include now_ms
-- @include watch_put
-- @include index_id
-- @include index_put
-- @each
-- @lasting

local now, when = now_ms(), -1
if delay_ms then when = watch_put(watch, clock, entry, now + delay_ms, stands, now) end
local id = index_id(entry)
local was = index_doc(about, id)
local stamp, doc = index_stamp(was), { status, version, write, created, session, task, handler, attributes }
if rule == 'move' then
  if not was then return { 'MISSING', when } end
  doc = { status, version, write, unpack(was, 4, 8) }
  if was[3] == write and was[1] == status then doc[9] = was[9] end
end
if ended then doc[9] = status .. struct.pack('>I7', ended) end
if string.sub(rule, 1, 3) == 'is ' then
  if string.sub(rule, 4) ~= stamp then return { 'STALE', when, stamp } end
elseif was and (rule == 'new' and stamp ~= index_stamp(doc) or was[2] > version) then
  return { 'STALE', when, stamp }
end
index_put(index, about, expiry, id, was, doc, now, ttl_ms)
return { 'OK', when }
