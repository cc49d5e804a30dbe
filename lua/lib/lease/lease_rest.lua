-- Give back the lease of a run that waits, and keep its hash for five minutes at most: the run cleans up under
-- it. Later no write of that run passes. The task's record keeps its epoch, so that the next one is greater.
local function lease_rest(lease, life_ms, task)
  local epoch = redis.call('HGET', lease, 'epoch')
  if epoch then redis.call('HSET', task, 'epoch', epoch) end
  redis.call('HSET', lease, 'owner', '', 'expires', 0)
  redis.call('PEXPIRE', lease, math.min(life_ms, 300000))
end
