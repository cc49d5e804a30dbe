-- Whether as many jobs of a line run as may. A permit whose claim is gone would be nobody's to end. An earlier version of
-- the library leaves such a one, if it ends the claim of a job whose line stands in another. So one is looked at.
local function line_full(keys, line, limit, now)
  local low, high = '[' .. line .. '\0', '(' .. line .. '\1'
  local held = redis.call('ZLEXCOUNT', keys.holders, low, high)
  if held < limit then return false end
  local member = redis.call('ZRANGEBYLEX', keys.holders, low, high, 'LIMIT', now % held, 1)[1]
  if redis.call('ZSCORE', keys.claims, string.sub(member, #line + 2)) then return true end
  redis.call('ZREM', keys.holders, member)
  return held > limit
end
