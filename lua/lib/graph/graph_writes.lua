-- Read the pending writes of a checkpoint: its list of them, and their values in the list's order. Each
-- line is <task> <index> <number> <channel>. With channels, only theirs.
local function graph_writes(thread, place, channels)
  local lines, found = redis.call('HGET', thread, 'w' .. place), {}
  if not lines then return found end
  for line in string.gmatch(lines, '[^\n]+') do
    local number, channel = string.match(line, '^%S+ %S+ (%d+) (%S+)$')
    if not channels or channels[channel] then
      found[#found + 1] = line
      found[#found + 1] = redis.call('HGET', thread, 'w' .. place .. ' ' .. number) or ''
    end
  end
  return found
end
