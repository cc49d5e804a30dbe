-- The first waiting job of a line, as a member of the list of jobs with keys: line, place and id, each but the
-- last followed by a zero byte. Keys have only plain characters. Likewise the first head of a limit key.
-- @include key_lines
local function flow_first(keyed, line)
  return redis.call('ZRANGEBYLEX', keyed, '[' .. line .. '\0', '(' .. line .. '\1', 'LIMIT', 0, 1)[1]
end

-- What stands for a line in that of the limit key of its first job, and that key. Nothing for a line by itself.
local function flow_head(keys, line)
  local first = string.find(line, '^1:[^;]*$') and flow_first(keys.keyed, line)
  if not first then return end
  local place, id = string.match(first, '%z([^%z]+)%z(.*)$')
  local above = string.match(redis.call('HGET', keys.owners, id) or '', '^[^;%z]*;([^%z]*)%z')
  if above then return above .. '\0' .. place .. '\0' .. line, above end
end
