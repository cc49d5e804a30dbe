-- Let entries be due soon, one after the other, for one process at a time, which does so for all whose jobs another
-- history of the queues, or of the store, may lack. What a sweeper has claimed is no longer its claim. A repetition
-- hastens the same entries.
-- KEYS watch     zset: entry -> when, in ms
-- KEYS clock     string: when the list was last written, in ms
-- KEYS known     hash: history, store, nodes, walker, until: which histories all entries of this list were compared
--   with; an earlier version knows no nodes, and leaves them
-- ARGV walker    random id of the process
-- ARGV hold_ms   int: for how long no other process does it
-- ARGV history   of the queues, as the process found it before it began
-- ARGV store     history of the store's server, likewise; '' if that has the queues too
-- ARGV nodes     history of the nodes of the store's cluster, likewise; '' without one
-- ARGV all       flag: these are the last
-- ARGV first_ms  int: until the first entry is due
-- ARGV step_ms   int: from one entry to the next
-- ARGV entries.. of the watch list
-- Returns
--   {'OK', known}  1 if all are compared with these histories
--   {'HELD'}       another process does it; nothing was written
-- @include now_ms
-- @include watch_clock
-- @include watch_live

local now, held = now_ms(), redis.call('HMGET', known, 'history', 'walker', 'until', 'store', 'nodes')
if held[1] == history and (held[4] or '') == store and (held[5] or '') == nodes then return { 'OK', 1 } end
local left = tonumber(held[3] or 0) - now
if held[2] and held[2] ~= walker and left > 0 and left <= hold_ms then return { 'HELD' } end
watch_clock(watch, clock, now)
for i, entry in ipairs(entries) do
  redis.call('ZADD', watch, string.format('%.0f', now + first_ms + (i - 1) * step_ms), entry)
end
if #entries > 0 then watch_live(watch) end
if all then
  redis.call('HSET', known, 'history', history, 'store', store, 'nodes', nodes)
  redis.call('HDEL', known, 'walker', 'until')
else
  redis.call('HSET', known, 'walker', walker, 'until', string.format('%.0f', now + hold_ms))
end
redis.call('PEXPIRE', known, 34560000000)
return { 'OK', all and 1 or 0 }
