-- End the claim of a task's job, if it is the given one, or any for nil: its permits are free again. Returns 1
-- if it was there, then also its key, and after how many runs its job took of the key's rate, if it did.
-- @include flow_key
local function claim_end(keys, task, claimed)
  local was = tonumber(redis.call('ZSCORE', keys.claims, task) or 0)
  if was == 0 or claimed and was ~= claimed then return 0 end
  redis.call('ZREM', keys.claims, task)
  local held = redis.call('HMGET', keys.owners, 'held:' .. task, 'took:' .. task)
  local key, took = held[1], held[2]
  if key or took then redis.call('HDEL', keys.owners, 'held:' .. task, 'took:' .. task) end
  if not key then return 1 end
  redis.call('ZREM', keys.holders, key .. '\0' .. task)
  if flow_first(keys.keyed, key) then flow_turn(keys, key) end
  return 1, key, took
end
