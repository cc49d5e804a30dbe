-- Take a session out of its listings, as it was entered: <created>:<id> <tags>.
local function session_unlist(index, expiries, entry)
  local place, tags = string.match(entry, '^(%S+) (.*)$')
  for tag in string.gmatch(tags, '%S+') do redis.call('ZREM', index, tag .. ':' .. place) end
  redis.call('ZREM', expiries, entry)
end
