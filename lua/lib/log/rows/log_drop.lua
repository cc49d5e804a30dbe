-- Drop the rows of a log, and return how many there were. Its numbers continue, so that no cursor can
-- point into a later log.
-- @include log_head
-- @include log_release
-- @include now_ms
local function log_drop(rows, ids)
  -- Of a log that was held only the rows are: its numbers live for as long as without an archive.
  log_release(rows, ids, now_ms())
  local head, dropped = log_head(redis.call('HGET', ids, '')), redis.call('XLEN', rows)
  local expires = redis.call('PEXPIRETIME', ids)
  redis.call('UNLINK', rows, ids)
  if head.last == 0 then return dropped end
  -- As expired at once: the next append then gives the new stream its lifetime.
  head.first, head.first_ms, head.expires, head.before_ms = head.last + 1, 0, 0, head.last_ms
  redis.call('HSET', ids, '', log_text(head))
  -- Without a lifetime there is none to restore: a time in the past would delete the numbers.
  if expires > 0 then redis.call('PEXPIREAT', ids, string.format('%.0f', expires)) end
  return dropped
end
