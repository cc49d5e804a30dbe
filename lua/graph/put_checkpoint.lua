-- Put a checkpoint into its thread, with the values of channels that are new. A value is written once
-- for its version. A repetition writes the same row again.
-- KEYS thread   hash: r<place> row, b<name> value of a channel; owner, claim, epoch, expires, length
-- KEYS order    zset: places, by name
-- ARGV mark     of the writer's claim on the thread, '' for none
-- ARGV listed   flag: the caller has listed the thread lately
-- ARGV place    of the checkpoint: namespace and id
-- ARGV parent   the place that the other values were put with, '' if all are given
-- ARGV row      the checkpoint
-- ARGV ttl_ms   int: of the thread, from now
-- ARGV values.. long: names and values of channels, in turn
-- Returns
--   {'OK'}
--   {'MISSING'}        there is no such thread: list it first; nothing was written
--   {'STALE'}          the parent is not there, so other values may not be: give all; nothing was written
--   {'LOST', epoch}    another claim has the thread; nothing was written
--   {'HELD', left_ms}  the caller has no claim, and another has; nothing was written
-- @include graph_refusal
-- @lasting

local refused = graph_refusal(thread, mark)
if refused then return refused end
if listed and redis.call('EXISTS', thread) == 0 then return { 'MISSING' } end
if parent ~= '' and redis.call('HEXISTS', thread, 'r' .. parent) == 0 then return { 'STALE' } end
for at = values_from, #values, 2 do redis.call('HSETNX', thread, 'b' .. values[at], values[at + 1]) end
redis.call('HSET', thread, 'r' .. place, row)
redis.call('ZADD', order, 0, place)
redis.call('PEXPIRE', thread, ttl_ms)
redis.call('PEXPIRE', order, ttl_ms)
return { 'OK' }
