-- Write a part of a copy. It is made beside the key, and takes its place when all of it is there. A
-- repetition writes the same again; one that comes behind the end, or out of turn, is refused.
-- KEYS key      string: or a hash, list, zset or stream
-- KEYS copied   hash: key -> digest of what was copied to it
-- KEYS copy     string: or whatever the key is
-- ARGV kind     string, hash, list, zset or stream
-- ARGV at       int: items that are there already
-- ARGV ttl_ms   int: of the copy; 0 for ever
-- ARGV keep_ms  int: how long the digest is kept
-- ARGV digest   of the whole; empty if more parts follow
-- ARGV about..  of a stream its last id, rows added and highest id deleted
-- ARGV items..  long: of a stream an id, a number and as many words, in turn
-- Returns
--   {'OK', count}     items that are there now
--   {'AGAIN', count}  there are not as many as the caller says: begin again
-- @include write_items
-- @include copy_size

if at == 0 then redis.call('UNLINK', copy) end
local count = copy_size(copy, kind)
if count ~= at then return { 'AGAIN', count } end
write_items(copy, kind, items, items_from)
count = copy_size(copy, kind)
if digest == '' then
  redis.call('PEXPIRE', copy, keep_ms)
  return { 'OK', count }
end
if kind == 'stream' then
  if count == 0 then redis.call('XADD', copy, 'MAXLEN', 0, about[1], '', '') end
  redis.call('XSETID', copy, about[1], 'ENTRIESADDED', about[2], 'MAXDELETEDID', about[3])
end
if ttl_ms > 0 then redis.call('PEXPIRE', copy, ttl_ms) else redis.call('PERSIST', copy) end
redis.call('RENAME', copy, key)
redis.call('HSET', copied, key, digest)
redis.call('PEXPIRE', copied, keep_ms)
return { 'OK', count }
