-- Save what changed of an agent's session, if it is at the expected version. Takes up to ten
-- sessions that have expired out of the listing. A repetition finds its write.
-- KEYS session     hash: version, write, writes, created, born, tags and the fields given
-- KEYS index       zset: <tag>:<created>:<id>, by name
-- KEYS expiries    zset: <created>:<id> <tags> -> when it expires in ms
-- KEYS lease       hash: epoch, claim
-- ARGV mark        of the writer's lease, '' for none
-- ARGV expected    version, 0 to create it
-- ARGV base        write that the fields not given are of, '' if all are given
-- ARGV write       id of this call
-- ARGV ttl_ms      int: milliseconds
-- ARGV session_id  of the session
-- ARGV tags        under which it is listed, with a space between two
-- ARGV born        when the session was made, by its own header
-- ARGV dropped..   fields that go
-- ARGV fields..    long: names and values, in turn
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
-- @lasting

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
for first = 1, #dropped, portion do
  redis.call('HDEL', session, unpack(dropped, first, math.min(first + portion - 1, #dropped)))
end
for first = fields_from, #fields, portion do
  redis.call('HSET', session, unpack(fields, first, math.min(first + portion - 1, #fields)))
end
local version = string.format('%.0f', tonumber(expected) + 1)
local last = { write .. ':' .. version }
for each in string.gmatch(writes, '%S+') do
  if #last < kept then last[#last + 1] = each end
end
redis.call('HSET', session, 'write', write, 'version', version, 'created', created, 'tags', tags,
  'writes', table.concat(last, ' '), 'born', born)
redis.call('PEXPIRE', session, ttl_ms)
local now, place = now_ms(), created .. ':' .. session_id
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
