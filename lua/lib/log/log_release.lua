-- Let go of a log that was held: it expires when it would have, a minute from now at least, and what is appended next
-- drops old rows. Return 1 if that changed anything.
-- @include log_head
-- @include log_live
local function log_release(rows, ids, now)
  local text, left = redis.call('HGET', ids, ''), redis.call('PTTL', rows)
  if not text or left == -1 then return 0 end
  -- An append extends the head's time also while the log is held. Rows that an eviction took leave their hold.
  local head = log_head(text)
  local ends = math.max(head.expires, now + 60000)
  if not head.held and ends >= now + left then return 0 end
  local oldest = redis.call('XRANGE', rows, '-', '+', 'COUNT', 1)[1]
  head.held, head.first_ms = nil, oldest and tonumber(string.match(oldest[1], '-(%d+)')) or 0
  log_live(rows, ids, log_text(head), ends)
  return 1
end
