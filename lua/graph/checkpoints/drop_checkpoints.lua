-- Drop checkpoints of a namespace with their writes, and values of channels that none of the others
-- needs, once per call. What was put since the caller looked stays, with all that it needs: the script reads that
-- from the list of puts.
-- KEYS thread     hash: r<place> row, b<name> value of a channel, w<place> writes
-- KEYS order      zset: places, by name
-- KEYS puts       list: an id, then the places of checkpoints that were put meanwhile
-- ARGV mark       of the writer's claim on the thread, '' for none
-- ARGV namespace  of all places, with its colon
-- ARGV watch      id of the list of puts
-- ARGV seen       int: how many entries of it the caller knows
-- ARGV last       the last one of these
-- ARGV known      int: how many checkpoints of the namespace the caller knows
-- ARGV newest     the highest place of the namespace that the caller knew
-- ARGV forks      flag: a checkpoint on which another was put since stays, and so do those that it needs
-- ARGV ttl_ms     int: how long the list of puts is kept, from now
-- ARGV places..   of those to be dropped: each, and the place of the one that it needs, '' for none
-- ARGV names..    long: of values of channels
-- Returns
--   {'OK', dropped, seen, last, puts, parents, kept, names}   seen and last by now; places that were put since,
--     and those on which they were put; places that stay; names of values that they need
--   {'STALE'}          the list of puts is another one, or lacks what the namespace has; nothing was dropped
--   {'LOST', epoch}    another claim has the thread
--   {'HELD', left_ms}  the caller has no claim, and another has
-- @include graph_refusal
-- @include graph_value
-- @include graph_writes
-- @once
-- @idempotent
-- @lasting

local refused = graph_refusal(thread, mark)
if refused then return refused end
if redis.call('LINDEX', puts, 0) ~= watch or redis.call('LINDEX', puts, seen - 1) ~= last then return { 'STALE' } end
local since, put, listed = redis.call('LRANGE', puts, seen, -1), {}, {}
for _, place in ipairs(since) do
  if string.sub(place, 1, #namespace) == namespace then put[#put + 1], listed[place] = place, true end
end
local above = '(' .. string.sub(namespace, 1, -2) .. ';'
if redis.call('ZLEXCOUNT', order, '[' .. namespace, above) > known + #put then return { 'STALE' } end
-- What an older version puts is in no list. A drop by another caller can hide it from the count.
for _, place in ipairs(redis.call('ZRANGEBYLEX', order, '(' .. newest, above)) do
  if not listed[place] then return { 'STALE' } end
end
local needs, needed, parents, kept = {}, {}, {}, {}
for at = 1, #places, 2 do needs[places[at]] = places[at + 1] end
local function keep(place)
  if needs[place] then kept[#kept + 1], needs[place] = place, nil end
  local row = redis.call('HGET', thread, 'r' .. place)
  if not row then return nil end
  local _, head = cmsgpack.unpack_one(row)
  for _, name in ipairs(head[3]) do graph_value(thread, namespace .. name, needed, {}) end
  return head[1] and namespace .. head[1]
end
for _, place in ipairs(put) do
  local parent = keep(place)
  if parent then parents[#parents + 1] = parent end
  while forks and needs[parent] do
    local further = needs[parent]
    keep(parent)
    parent = further
  end
end
local dropped, names_needed = 0, {}
for at = 1, #places, 2 do
  local place = places[at]
  if needs[place] then
    local list = 'w' .. place
    for line_at, line in ipairs(graph_writes(thread, place)) do
      if line_at % 2 == 1 then
        local key, number = string.match(line, '^(%S+ %S+) (%d+)')
        redis.call('HDEL', thread, list .. ' ' .. number, list .. ' of ' .. key)
      end
    end
    redis.call('HDEL', thread, list, list .. ' more', 'r' .. place)
    dropped = dropped + redis.call('ZREM', order, place)
  end
end
for at = names_from, #names do
  if not needed[names[at]] then redis.call('HDEL', thread, 'b' .. names[at]) end
end
for name in pairs(needed) do names_needed[#names_needed + 1] = name end
redis.call('PEXPIRE', puts, ttl_ms)
return keep_reply({ 'OK', dropped, seen + #since, since[#since] or last, put, parents, kept, names_needed })
