-- Save what changed of an agent's session, if it is at the expected version. Takes up to ten
-- sessions that have expired out of the listing. A repetition finds its write.
-- KEYS[1] session  hash: version, write, writes, created, born, tags and the fields given
-- KEYS[2] index    zset: <tag>:<created>:<id>, by name
-- KEYS[3] expiries zset: <created>:<id> <tags> -> when it expires in ms
-- KEYS[4] lease    hash: epoch, claim
-- ARGV[1] mark     of the writer's lease, '' for none
-- ARGV[2] expected version, 0 to create it
-- ARGV[3] base     write that the fields not given are of, '' if all are given
-- ARGV[4] write    id of this call
-- ARGV[5] ttl_ms   milliseconds
-- ARGV[6] id       of the session
-- ARGV[7] tags     under which it is listed, with a space between two
-- ARGV[8] born     when the session was made, by its own header
-- ARGV[9] dropped  how many fields go
-- ARGV[10..] fields those that go, then names and values, in turn
-- Returns
--   {'OK', version}     the new version, or that of this write if it is among the last sixteen
--   {'STALE', version}  it is at this version; nothing was written
--   {'MISSING'}         there is none; nothing was written
--   {'AGAIN'}           it is another life's: another base, or born elsewhen; nothing was written
--   {'LOST', epoch}     another claim has the lease; nothing was written
-- @include fence
-- @include now_ms
-- @include now_us
-- @include session_unlist
local session, index, expiries, lease = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local mark, expected, base, write = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ttl_ms, id, tags, born = tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]
local dropped = tonumber(ARGV[9])

local portion, kept, swept = 200, 16, 10
local was = redis.call('HMGET', session, 'write', 'version', 'created', 'tags', 'writes', 'born')
local writes = ' ' .. (was[5] or '')
local _, known = string.find(writes, ' ' .. write .. ':', 1, true)
if known then return { 'OK', tonumber(string.match(writes, '^%d+', known + 1)) } end
local lost = fence(lease, mark)
if lost then return lost end
if expected ~= '0' and not was[2] then return { 'MISSING' } end
if (was[2] or '0') ~= expected then return { 'STALE', tonumber(was[2]) } end
if base ~= '' and was[1] ~= base then return { 'AGAIN' } end
if expected ~= '0' and was[6] ~= born then return { 'AGAIN' } end
local created = was[3] or string.format('%016.0f', now_us())
if base == '' then redis.call('UNLINK', session) end
local first_field = 10 + dropped
for first = 10, first_field - 1, portion do
  redis.call('HDEL', session, unpack(ARGV, first, math.min(first + portion, first_field) - 1))
end
for first = first_field, #ARGV, portion do
  redis.call('HSET', session, unpack(ARGV, first, math.min(first + portion - 1, #ARGV)))
end
local version = string.format('%.0f', tonumber(expected) + 1)
local last = { write .. ':' .. version }
for each in string.gmatch(writes, '%S+') do
  if #last < kept then last[#last + 1] = each end
end
redis.call('HSET', session, 'write', write, 'version', version, 'created', created, 'tags', tags,
  'writes', table.concat(last, ' '), 'born', born)
redis.call('PEXPIRE', session, ttl_ms)
local now, place = now_ms(), created .. ':' .. id
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', expiries, '-inf', '(' .. now, 'LIMIT', 0, swept)) do
  session_unlist(index, expiries, dead)
end
if was[4] and was[4] ~= tags then session_unlist(index, expiries, place .. ' ' .. was[4]) end
for tag in string.gmatch(tags, '%S+') do redis.call('ZADD', index, 0, tag .. ':' .. place) end
redis.call('ZADD', expiries, now + ttl_ms, place .. ' ' .. tags)
for _, key in ipairs({ index, expiries }) do
  if redis.call('PTTL', key) < ttl_ms then redis.call('PEXPIRE', key, ttl_ms) end
end
return { 'OK', tonumber(version) }
