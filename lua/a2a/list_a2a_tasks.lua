-- Read a page of a scope's A2A tasks in the order of the list, and count all that match.
-- KEYS books.index   zset: order and id, all of score 0
-- KEYS books.places  hash: id -> context, state and time
-- KEYS books.expiry  zset: id -> when, in ms
-- KEYS tasks..       hashes: tasks that may stand on the page, as far as the caller knows them
-- ARGV prefix        context and state that must match
-- ARGV since         the earliest time, in the digits of the index
-- ARGV after         time and id of the last task of the page before, '' for the first page
-- ARGV size          int: of the page
-- ARGV most_bytes    int: no task more once those found have so many
-- ARGV whole         flag: with the tasks' bodies, which needs their keys
-- ARGV settle        flag: leave out what the caller does not know, which came since its first call
-- ARGV known..       id of each task in KEYS
-- Returns
--   {'OK', total, others, more, task, ...}   others have the same context and another state; more is 1 if
--     another page follows; a task is its place, and with its body version, at and body
--   {'AGAIN', id, ...}   call again with the keys of these
-- @include now_ms
-- @include a2a_books

if a2a_sweep(books, now_ms(), 200) then return { 'AGAIN', unpack(known) } end
local low, high = '[' .. prefix .. since, '(' .. prefix .. '2'
local total = redis.call('ZLEXCOUNT', books.index, low, high)
local any = string.match(prefix, '^[^|]*|') .. '*|'
local others = redis.call('ZLEXCOUNT', books.index, '[' .. any .. since, '(' .. any .. '2') - total
if after ~= '' then high = '(' .. prefix .. after end
-- A few more than the page takes: those may move up before the caller comes back with their keys.
local near = redis.call('ZREVRANGEBYLEX', books.index, high, low, 'LIMIT', 0, size + 33)
local key_of = {}
for i, id in ipairs(known) do key_of[id] = tasks[i] end
local again, reply, last, unknown, bytes = { 'AGAIN' }, { 'OK', total, others, 0 }, 0, false, 0
for i, member in ipairs(near) do
  local place = string.sub(member, #prefix + 1)
  local id = string.sub(place, 32)
  local room = #reply < size + 4 and bytes < most_bytes
  again[#again + 1] = id
  if room and not whole then
    reply[#reply + 1], last = { place }, i
  elseif room and key_of[id] then
    local found = redis.call('HMGET', key_of[id], 'version', 'at', 'body')
    if not found[3] then
      a2a_forget(books, id)
      return { 'AGAIN', unpack(known) }
    end
    reply[#reply + 1], last = { place, tonumber(found[1]), tonumber(found[2]), found[3] }, i
    bytes = bytes + #found[3]
  elseif room then
    unknown = true
  end
end
if (unknown and not settle) or (whole and last == 0 and #near > 0) then return again end
if last < #near or #near == size + 33 then reply[4] = 1 end
return reply
