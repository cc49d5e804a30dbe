-- Return until when a record that is held would live without that, and until when it is held, in ms; nothing if it is
-- not held, or if something else has changed its lifetime since.
local function archive_held(record)
  local before, held = string.match(redis.call('HGET', record, 'archive_hold') or '', '^(%d+) (%d+)$')
  if before and redis.call('PEXPIRETIME', record) == tonumber(held) then return before, tonumber(held) end
end
