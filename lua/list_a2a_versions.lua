-- Read a page of an owner's A2A tasks in the order of the list, and count all that are asked for.
-- KEYS[1] index    zset: order and id, all of score 0
-- KEYS[2] places   hash: id -> context, state and time
-- KEYS[3] expiry   zset: id -> when, in ms
-- KEYS[4..] tasks  hashes: the tasks of the page, as far as the caller knows them
-- ARGV[1] asked    context and state, the prefix of what is asked for
-- ARGV[2] since    the earliest time, in the digits of the index
-- ARGV[3] after    time and id of the last task of the page before, '' for the first page
-- ARGV[4] size     of the page
-- ARGV[5..] known  time and id of each task in KEYS
-- Returns
--   {'OK', total, more, task, ...}   more is 1 if another page follows; a task is place, version, at, body
--   {'AGAIN', place, ...}   call again with the keys of these
-- @include now_ms
-- @include a2a_books
local index, places, expiry = KEYS[1], KEYS[2], KEYS[3]
local tasks = { unpack(KEYS, 4) }
local asked, since, after, size = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local known = { unpack(ARGV, 5) }

local books = { index = index, places = places, expiry = expiry }
if a2a_sweep(books, now_ms(), 200) then return { 'AGAIN' } end
local low, high = '[' .. asked .. since, '(' .. asked .. '2'
local total = redis.call('ZLEXCOUNT', index, low, high)
if after ~= '' then high = '(' .. asked .. after end
local page = redis.call('ZREVRANGEBYLEX', index, high, low, 'LIMIT', 0, size + 1)
local more = #page > size and 1 or 0
page[size + 1] = nil
local reply, same = { 'OK', total, more }, #page == #known
for i, member in ipairs(page) do
  page[i] = string.sub(member, #asked + 1)
  same = same and page[i] == known[i]
end
if not same then return { 'AGAIN', unpack(page) } end
for i, key in ipairs(tasks) do
  local found = redis.call('HMGET', key, 'version', 'at', 'body')
  if not found[3] then
    a2a_forget(books, string.sub(known[i], 32))
    return { 'AGAIN' }
  end
  reply[#reply + 1] = { known[i], tonumber(found[1]), tonumber(found[2]), found[3] }
end
return reply
