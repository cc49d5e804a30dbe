-- Give back the lease of a run that waits, and keep its hash for five minutes at most: the run cleans up under
-- it. Later no write of that run passes, and the next epoch is the server's time.
local function lease_rest(lease, life_ms)
  redis.call('HSET', lease, 'owner', '', 'expires', 0)
  redis.call('PEXPIRE', lease, math.min(life_ms, 300000))
end
