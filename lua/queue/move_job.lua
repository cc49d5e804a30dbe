-- Move a job that waits in its queue, once per call.
-- KEYS keys.queue   zset: job id -> when it is due, in ms
-- KEYS keys.owners  hash: id -> its key and place, later:<id> -> key
-- KEYS keys.keyed   zset: key, place and id of each job that has a key, in order
-- ARGV id           the job's id
-- ARGV earlier_ms   int: by how much it is due earlier
-- ARGV at_ms        int: when its task is due; '' for one that is due by itself
-- Returns
--   {'OK', moved}  1 if it waited
-- @include now_ms
-- @include line_move
-- @once

local owner = redis.call('HGET', keys.owners, id)
if owner then
  local key, place = string.match(owner, '^(.-)%z(.*)$')
  local moved = string.format('%018.4f', place - earlier_ms)
  line_move(keys, id, owner, key .. '\0' .. moved)
  return keep_reply({ 'OK', 1 })
end
-- What is put off is not due any earlier for it, nor any later.
local later = (at_ms or 0) > now_ms() or redis.call('HEXISTS', keys.owners, 'later:' .. id) == 1
if later or not redis.call('ZSCORE', keys.queue, id) then return keep_reply({ 'OK', 0 }) end
redis.call('ZINCRBY', keys.queue, string.format('%.0f', -earlier_ms), id)
return keep_reply({ 'OK', 1 })
