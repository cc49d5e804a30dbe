-- Hold a log until it is archived, if it is not held for `least_ms` yet: it lives for `hold_ms` from now, and no row of
-- it is too old. How many rows it may have stays. Return 1 if that changed anything.
-- @include log_head
-- @include log_live
local function log_hold(rows, ids, least_ms, hold_ms, now)
  local text, left = redis.call('HGET', ids, ''), redis.call('PTTL', rows)
  if not text or left < 0 then return 0 end
  local head = log_head(text)
  -- A worker of a version without holds may have shortened the lifetime.
  if head.held and math.min(head.held - now, left) >= least_ms then return 0 end
  head.held = now + hold_ms
  log_live(rows, ids, log_text(head), math.max(head.held, head.expires))
  return 1
end
