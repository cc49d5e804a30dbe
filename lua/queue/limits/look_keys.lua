-- Return the keys of a queue that stand behind one in a list, with what waits and runs of each.
-- KEYS list          zset: the list that is read, one of the next two
-- KEYS keys.keyed    zset: line, place and id of each job that has a key, in order
-- KEYS keys.holders  zset: line and task of each claim that has a key
-- ARGV after         the last key that was read, '' at the beginning
-- ARGV most          int: keys at most
-- Returns
--   {'OK', now, last, key, waiting, running, id, place, ...}  the server's time; the last key that was read, '' at
--                    the end; of each key how many jobs are due, how many run, and the first that is due, '' for none
-- @include now_ms

local reply = { 'OK', string.format('%.0f', now_ms()), '' }
local key = after
for _ = 1, most do
  local from = key == '' and '-' or '(' .. key .. '\1'
  key = string.match(redis.call('ZRANGEBYLEX', list, from, '+', 'LIMIT', 0, 1)[1] or '', '^([^%z]+)')
  -- What waits for a version of its handler comes last, and is not under its key.
  if not key or string.sub(key, 1, 2) == 'v:' then return reply end
  local low, high = '[' .. key .. '\0', '(' .. key .. '\1'
  local waiting, running = redis.call('ZLEXCOUNT', keys.keyed, low, high), redis.call('ZLEXCOUNT', keys.holders, low, high)
  local place, id = '', ''
  if waiting > 0 then
    local first = redis.call('ZRANGEBYLEX', keys.keyed, low, high, 'LIMIT', 0, 1)[1]
    place, id = string.match(first, '%z([^%z]+)%z(.*)$')
  end
  for _, fact in ipairs({ key, waiting, running, id, place }) do reply[#reply + 1] = fact end
end
reply[3] = key
return reply
