-- Delete an agent's session, and its places in the listing.
-- KEYS[1] session  hash: created, tags
-- KEYS[2] index    zset: <tag>:<created>:<id>, by name
-- ARGV[1] id       of the session
-- Returns
--   {'OK', deleted}  1 if there was one
local session, index = KEYS[1], KEYS[2]
local id = ARGV[1]

local was = redis.call('HMGET', session, 'created', 'tags')
for tag in string.gmatch(was[2] or '', '%S+') do
  redis.call('ZREM', index, tag .. ':' .. was[1] .. ':' .. id)
end
return { 'OK', redis.call('UNLINK', session) }
