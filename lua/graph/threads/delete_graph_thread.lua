-- Delete a thread with all its checkpoints, once per call. A claim on it stays.
-- KEYS thread  hash: all that it has; owner, claim, epoch, expires, length
-- KEYS order   zset: places, by name
-- ARGV mark    of the writer's claim on the thread, '' for none
-- Returns
--   {'OK', deleted}    1 if there was one
--   {'LOST', epoch}    another claim has the thread, or it was given back; nothing was deleted
--   {'HELD', left_ms}  the caller has no claim, and another has; nothing was deleted
-- @include graph_refusal
-- @once
-- @idempotent
-- @lasting

local refused = graph_refusal(thread, mark)
if refused then return refused end
local names = { 'owner', 'claim', 'epoch', 'expires', 'length' }
local claim, left_ms = redis.call('HMGET', thread, unpack(names)), redis.call('PTTL', thread)
local deleted = redis.call('UNLINK', thread, order) > 0 and 1 or 0
if claim[3] and left_ms > 0 then
  for at, name in ipairs(names) do redis.call('HSET', thread, name, claim[at] or '') end
  redis.call('PEXPIRE', thread, left_ms)
end
return keep_reply({ 'OK', deleted })
