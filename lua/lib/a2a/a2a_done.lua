-- The version that a repeated call wrote, when, and its row; nil if it wrote none yet.
local function a2a_done(log, write)
  local version = redis.call('HGET', log.ids, write)
  local row = version and redis.call('XRANGE', log.rows, version, version)[1]
  if not row then return nil end
  return tonumber(version), tonumber(string.match(row[1], '-(%d+)')), row[2][6]
end
