-- Put a checkpoint into its thread, with the values of channels that are new. A value is written once
-- for its version. A value may continue another one, which is there or is given too, and is what the caller
-- took it for. A repetition writes the same row again.
-- KEYS thread   hash: r<place> row, b<name> value of a channel; owner, claim, epoch, expires, length
-- KEYS order    zset: places, by name
-- KEYS puts     list: an id, then the places that were put during a pruning; absent without one
-- ARGV mark     of the writer's claim on the thread, '' for none
-- ARGV listed   flag: the caller has listed the thread lately
-- ARGV place    of the checkpoint: namespace and id
-- ARGV parent   the place that the other values were put with, '' if all are given
-- ARGV row      the checkpoint
-- ARGV ttl_ms   int: of the thread, from now
-- ARGV values.. long: names and values of channels, in turn
-- Returns
--   {'OK', kept}       values that were there already
--   {'MISSING'}        there is no such thread: list it first; nothing was written
--   {'STALE'}          the parent or what a value continues is not there, so other values may not be, or the
--     place is taken: give all values whole; nothing was written
--   {'LOST', epoch}    another claim has the thread, or it was given back; nothing was written
--   {'HELD', left_ms}  the caller has no claim, and another has; nothing was written
-- @include graph_base
-- @include graph_refusal
-- @lasting

local MOST_LINKS = 64
local refused = graph_refusal(thread, mark)
if refused then return refused end
local has_parent = parent ~= '' and redis.call('HEXISTS', thread, 'r' .. parent) == 1
if listed and not has_parent and redis.call('EXISTS', thread) == 0 then return { 'MISSING' } end
if parent ~= '' and not has_parent then return { 'STALE' } end
local given, kept = {}, 0
for at = values_from, #values, 2 do given[values[at]] = values[at + 1] end
local function stored(name) return redis.call('HGET', thread, 'b' .. name) or given[name] end
for _, value in pairs(given) do
  local base, digest = graph_base(value)
  if base then
    local there = stored(base)
    local same = there and string.sub(redis.sha1hex(there), 1, 16) == digest
    if not same or redis.call('HEXISTS', thread, 'r' .. place) == 1 then return { 'STALE' } end
    -- A checkpoint that was put again leaves values that no pruning knows: what they continue may be gone.
    for link = 1, MOST_LINKS + 1 do
      base = graph_base(there)
      if not base then break end
      there = stored(base)
      if not there or link > MOST_LINKS then return { 'STALE' } end
    end
  end
end
for name, value in pairs(given) do kept = kept + 1 - redis.call('HSETNX', thread, 'b' .. name, value) end
redis.call('HSET', thread, 'r' .. place, row)
redis.call('ZADD', order, '0', place)
redis.call('RPUSHX', puts, place)
redis.call('PEXPIRE', thread, ttl_ms)
redis.call('PEXPIRE', order, ttl_ms)
return { 'OK', kept }
