-- Move a job from its place to the claims, and into the reply.
-- @include lives
-- @include is_ahead
-- @include claim_end
-- @include line_claim
local function job_claim(keys, reply, now, life_ms, id, place, key)
  local task = string.match(id, '^(.*):%d+$') or id
  local before = tonumber(redis.call('ZSCORE', keys.claims, task) or 0)
  -- Later than any claim before it, which its worker then no longer ends: its permit goes now.
  local claimed = is_ahead(before, now) and now or math.max(now, 1 + before)
  if before > 0 then claim_end(keys, task) end
  redis.call('ZADD', keys.claims, string.format('%.0f', claimed), task)
  if key then
    line_claim(keys, life_ms, task, id, place, key)
  else
    redis.call('ZREM', keys.queue, id)
  end
  for _, each in ipairs({ id, place, string.format('%.0f', claimed) }) do reply[#reply + 1] = each end
end
