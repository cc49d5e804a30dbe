-- Read a page of an owner's A2A tasks in the order of the list, and count all that are asked for.
-- KEYS[1] index    zset: order and id, all of score 0
-- KEYS[2] places   hash: id -> context, state and time
-- KEYS[3] expiry   zset: id -> when, in ms
-- KEYS[4..] tasks  hashes: tasks that may stand on the page, as far as the caller knows them
-- ARGV[1] asked    context and state, the prefix of what is asked for
-- ARGV[2] since    the earliest time, in the digits of the index
-- ARGV[3] after    time and id of the last task of the page before, '' for the first page
-- ARGV[4] size     of the page
-- ARGV[5] settle   1 to leave out what the caller does not know, which came since it asked first
-- ARGV[6..] known  id of each task in KEYS
-- Returns
--   {'OK', total, more, task, ...}   more is 1 if another page follows; a task is place, version, at, body
--   {'AGAIN', id, ...}   call again with the keys of these
-- @include now_ms
-- @include a2a_books
local index, places, expiry = KEYS[1], KEYS[2], KEYS[3]
local tasks = { unpack(KEYS, 4) }
local asked, since, after, size, settle = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local known = { unpack(ARGV, 6) }

local books = { index = index, places = places, expiry = expiry }
if a2a_sweep(books, now_ms(), 200) then return { 'AGAIN', unpack(known) } end
local low, high = '[' .. asked .. since, '(' .. asked .. '2'
local total = redis.call('ZLEXCOUNT', index, low, high)
if after ~= '' then high = '(' .. asked .. after end
-- A few more than are asked for: those may move up before the caller comes back with their keys.
local near = redis.call('ZREVRANGEBYLEX', index, high, low, 'LIMIT', 0, size + 33)
local key_of = {}
for i, id in ipairs(known) do key_of[id] = tasks[i] end
local again, reply, last, unknown = { 'AGAIN' }, { 'OK', total, 0 }, 0, false
for i, member in ipairs(near) do
  local place = string.sub(member, #asked + 1)
  local id = string.sub(place, 32)
  again[#again + 1] = id
  if #reply < size + 3 and key_of[id] then
    local found = redis.call('HMGET', key_of[id], 'version', 'at', 'body')
    if not found[3] then
      a2a_forget(books, id)
      return { 'AGAIN', unpack(known) }
    end
    reply[#reply + 1] = { place, tonumber(found[1]), tonumber(found[2]), found[3] }
    last = i
  elseif #reply < size + 3 then
    unknown = true
  end
end
if (unknown and settle ~= '1') or (last == 0 and #near > 0) then return again end
if last < #near or #near == size + 33 then reply[3] = 1 end
return reply
