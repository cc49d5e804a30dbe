-- End the claim of a task's job, if it is the given one, or any for nil: its permits are free again. Returns 1
-- if it was there, then also its key. If its job took of the key's rate, then after how many runs, and of which rate.
-- @include flow_turn
local function claim_end(keys, task, claimed)
  local was = tonumber(redis.call('ZSCORE', keys.claims, task) or 0)
  if was == 0 or claimed and was ~= claimed then return 0 end
  redis.call('ZREM', keys.claims, task)
  local held = redis.call('HMGET', keys.owners, 'held:' .. task, 'took:' .. task, 'of:' .. task)
  local key, took, rate = held[1], held[2], held[3]
  if key or took then redis.call('HDEL', keys.owners, 'held:' .. task, 'took:' .. task, 'of:' .. task) end
  if not key then return 1 end
  local line, above = key_lines(key)
  -- An earlier version of the library knows a key as one line, whatever it says.
  redis.call('ZREM', keys.holders, line .. '\0' .. task, (above or line) .. '\0' .. task, key .. '\0' .. task)
  if flow_first(keys.keyed, line) then flow_turn(keys, line) end
  local name = above or line
  if above and flow_first(keys.keyed, name) or flow_first(keys.heads, name) then flow_turn(keys, name) end
  return 1, key, took, rate
end
