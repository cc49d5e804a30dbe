-- The first waiting job behind a key, in the order of the keys: its key, place and id. Nothing at the end.
local function keyed_first(keyed, after)
  local from = after == '' and '-' or '(' .. after .. '\1'
  local member = redis.call('ZRANGEBYLEX', keyed, from, '+', 'LIMIT', 0, 1)[1]
  if member then return string.match(member, '^([^%z]+)%z([^%z]+)%z(.*)$') end
end
