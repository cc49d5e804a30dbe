-- Drop checkpoints of a namespace with their writes, and values of channels that none of the others
-- needs, once per call. Nothing is dropped if checkpoints came or went since they were listed.
-- KEYS thread     hash: r<place> row, b<name> value of a channel, w<place> writes
-- KEYS order      zset: places, by name
-- ARGV mark       of the writer's claim on the thread, '' for none
-- ARGV namespace  of all places, with its colon
-- ARGV listed     SHA-1 of the places that the namespace has, joined by line feeds
-- ARGV places..   of those to be dropped
-- ARGV names..    of values of channels
-- Returns
--   {'OK', dropped}
--   {'STALE', count}   the namespace has other checkpoints, so many
--   {'LOST', epoch}    another claim has the thread
--   {'HELD', left_ms}  the caller has no claim, and another has
-- @include graph_refusal
-- @include graph_writes
-- @once
-- @idempotent
-- @lasting

local refused = graph_refusal(thread, mark)
if refused then return refused end
local above = '(' .. string.sub(namespace, 1, -2) .. ';'
local there = redis.call('ZRANGEBYLEX', order, '[' .. namespace, above)
if redis.sha1hex(table.concat(there, '\n')) ~= listed then return { 'STALE', #there } end
local dropped = 0
for _, place in ipairs(places) do
  local list = 'w' .. place
  for at, line in ipairs(graph_writes(thread, place)) do
    if at % 2 == 1 then
      local key, number = string.match(line, '^(%S+ %S+) (%d+)')
      redis.call('HDEL', thread, list .. ' ' .. number, list .. ' of ' .. key)
    end
  end
  redis.call('HDEL', thread, list, list .. ' more', 'r' .. place)
  dropped = dropped + redis.call('ZREM', order, place)
end
for _, name in ipairs(names) do redis.call('HDEL', thread, 'b' .. name) end
return keep_reply({ 'OK', dropped })
