-- List a patch for as long as its record is kept: a context that is cleared leaves no patch.
-- @include lives
local function patch_keep(kept, patch_id, life_ms, now)
  redis.call('ZREMRANGEBYSCORE', kept, '-inf', string.format('(%.0f', now * 1000))
  redis.call('ZADD', kept, string.format('%.0f', (now + life_ms) * 1000), patch_id)
  lives(kept, life_ms)
end
