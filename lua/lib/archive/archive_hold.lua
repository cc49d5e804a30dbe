-- Keep a record and what lives with it from expiring: if less than `least_ms` is left, all of them live for
-- `hold_ms` from now. The record's `archive_hold` says until when they lived before, and until when they do now. Held
-- again, they lived before as long as before the first time.
-- @include archive_held
local function archive_hold(record, others, least_ms, hold_ms, now)
  local left = redis.call('PTTL', record)
  if left < 0 or left >= least_ms then return 0 end
  local before, held = archive_held(record) or string.format('%.0f', now + left), string.format('%.0f', now + hold_ms)
  -- First: behind it a full server lets the rest pass. What cannot be held cannot be archived, and never makes room.
  redis.call('PEXPIREAT', record, held)
  redis.call('HSET', record, 'archive_hold', before .. ' ' .. held)
  for _, key in ipairs(others) do redis.call('PEXPIREAT', key, held, 'GT') end
  return 1
end

-- Undo that, unless something else has changed the record's lifetime since; a minute is left at least.
-- Return until when it was held, and until when it lives now; nothing if it was not undone.
local function archive_release(record, others, now)
  local before, held = archive_held(record)
  redis.call('HDEL', record, 'archive_hold')
  if not before then return end
  local ends = math.max(tonumber(before), now + 60000)
  local written = string.format('%.0f', ends)
  redis.call('PEXPIREAT', record, written)
  for _, key in ipairs(others) do redis.call('PEXPIREAT', key, written, 'LT') end
  return held, ends
end
