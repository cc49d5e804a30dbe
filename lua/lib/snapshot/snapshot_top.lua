-- Name the highest version that has an entry beginning with `prefix`, nil if none has. The names of
-- versions are as long as their numbers need and say so first: their order as text is numeric.
local function snapshot_top(index, prefix)
  local entry = redis.call('ZREVRANGEBYLEX', index, '[' .. prefix .. '\255', '[' .. prefix, 'LIMIT', 0, 1)[1]
  return entry and string.match(entry, '[^:]*$')
end
