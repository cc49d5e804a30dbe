-- Read of a stream its last id, how many rows were ever added, and the highest id that was deleted.
local function stream_about(key)
  local said, at = redis.call('XINFO', 'STREAM', key), {}
  for i = 1, #said, 2 do at[said[i]] = said[i + 1] end
  return { at['last-generated-id'], at['entries-added'], at['max-deleted-entry-id'] }
end
