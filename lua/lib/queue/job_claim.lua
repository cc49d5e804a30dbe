-- Move a job from its place to the claims, and into the reply. Its permit lives as long as claims do: a permit
-- without its claim would be nobody's to end.
-- @include lives
-- @include is_ahead
-- @include claim_end
local function job_claim(keys, reply, now, life_ms, id, place, key)
  local task = string.match(id, '^(.*):%d+$') or id
  local before = tonumber(redis.call('ZSCORE', keys.claims, task) or 0)
  -- Later than any claim before it, which its worker then no longer ends: its permit goes now.
  local claimed = is_ahead(before, now) and now or math.max(now, 1 + before)
  if before > 0 then claim_end(keys, task) end
  redis.call('ZADD', keys.claims, string.format('%.0f', claimed), task)
  if key then
    redis.call('ZREM', keys.keyed, key .. '\0' .. place .. '\0' .. id)
    -- A claim of which an earlier version saw the end may have left what it took.
    redis.call('HDEL', keys.owners, id, 'took:' .. task)
    redis.call('HSET', keys.owners, 'held:' .. task, key)
    redis.call('ZADD', keys.holders, 0, key .. '\0' .. task)
    redis.call('ZADD', keys.turns, redis.call('HINCRBY', keys.flow, 'turn', 1), key)
    lives(keys.holders, life_ms)
    -- What waits for longer keeps its key.
    for _, each in ipairs({ keys.owners, keys.turns }) do lives(each, 691200000) end
    redis.call('PEXPIRE', keys.flow, 34560000000)
  else
    redis.call('ZREM', keys.queue, id)
  end
  for _, each in ipairs({ id, place, string.format('%.0f', claimed) }) do reply[#reply + 1] = each end
end
