-- Read a part of the list of open pauses, the first opened first, and whether both of its indexes list as many.
-- KEYS expiries  zset: key of a token -> expiry in us
-- KEYS openings  zset: key of a token -> opening in ms
-- ARGV first     int: ms, the earliest opening
-- ARGV size      int: pauses at most
-- Returns
--   {'OK', differ, member, opened, ...}  differ is 1 if one index has others than the other; the key of each
--                                        pause's token, and when it was opened in ms

local from = string.format('%.0f', first)
local reply = { 'OK', redis.call('ZCARD', expiries) == redis.call('ZCARD', openings) and 0 or 1 }
local found = redis.call('ZRANGEBYSCORE', openings, from, '+inf', 'WITHSCORES', 'LIMIT', 0, size)
for at = 1, #found, 2 do
  reply[#reply + 1], reply[#reply + 2] = found[at], tonumber(found[at + 1])
end
return reply
