-- End the claim of a task's job, if it is the given one, or any for nil: its permits are free again. Returns 1
-- if it was there.
-- @include flow_key
local function claim_end(keys, task, claimed)
  local was = tonumber(redis.call('ZSCORE', keys.claims, task) or 0)
  if was == 0 or claimed and was ~= claimed then return 0 end
  redis.call('ZREM', keys.claims, task)
  local key = redis.call('HGET', keys.owners, 'held:' .. task)
  if key then
    redis.call('HDEL', keys.owners, 'held:' .. task)
    redis.call('ZREM', keys.holders, key .. '\0' .. task)
    if flow_first(keys.keyed, key) then flow_turn(keys, key) end
  end
  return 1
end
