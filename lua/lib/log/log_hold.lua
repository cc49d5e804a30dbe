-- Hold a log until it is archived, if it is not held for `least_ms` yet: it lives for `hold_ms` from now, and no row of
-- it is too old. How many rows it may have stays. Return 1 if that changed anything.
-- @include log_head
local function log_hold(rows, ids, least_ms, hold_ms, now)
  local text, left = redis.call('HGET', ids, ''), redis.call('PTTL', rows)
  if not text or left < 0 then return 0 end
  local head = log_head(text)
  -- A worker of a version without holds may have shortened the lifetime.
  if head.held and math.min(head.held - now, left) >= least_ms then return 0 end
  head.held = now + hold_ms
  redis.call('HSET', ids, '', log_text(head))
  local ends = string.format('%.0f', math.max(head.held, head.expires))
  for _, key in ipairs({ rows, ids }) do redis.call('PEXPIREAT', key, ends) end
  return 1
end
