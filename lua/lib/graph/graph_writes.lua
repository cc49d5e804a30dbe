-- Read the pending writes of a checkpoint: its list of them, and their values in the list's order. Each
-- line is <task> <index> <number> <channel>. Behind a full list a value begins with its line. With
-- channels, only theirs. The caller may have read the list.
-- @include graph_writes_more
local function graph_writes(thread, place, channels, lines)
  local list, found, count = 'w' .. place, {}, 0
  local function add(line, data)
    local channel = string.match(line, '(%S+)$')
    if channels and not channels[channel] then return end
    found[#found + 1] = line
    found[#found + 1] = data or redis.call('HGET', thread, list .. ' ' .. string.match(line, '^%S+ %S+ (%d+)')) or ''
  end
  for line in string.gmatch(lines or redis.call('HGET', thread, list) or '', '[^\n]+') do
    count = count + 1
    add(line)
  end
  for number = count + 1, count + graph_writes_more(thread, list, count) do
    local written = redis.call('HGET', thread, list .. ' ' .. number) or ''
    local ends = string.find(written, '\n', 1, true)
    if ends then add(string.sub(written, 1, ends - 1), string.sub(written, ends + 1)) end
  end
  return found
end
