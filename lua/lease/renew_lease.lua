-- Prolong a lease that nobody has taken over since, even if it has expired. A repetition prolongs it
-- again.
-- KEYS lease        hash: owner, claim, epoch, expires, length
-- ARGV owner        of the claim that took it
-- ARGV epoch        that it was taken under
-- ARGV duration_ms  int: from now
-- ARGV keep_ms      how long the epoch is remembered afterwards: ms, '' in the hash of a record
-- Returns
--   {'OK', epoch}    it is held for so long again
--   {'LOST', epoch, taken}  it was released; or taken is 1: another claim took it, or its server forgot it
-- @include now_ms

local was = redis.call('HMGET', lease, 'owner', 'epoch', 'claim')
if was[1] ~= owner or was[2] ~= epoch then
  return { 'LOST', tonumber(was[2] or 0), (was[2] == epoch and was[3] == owner) and 0 or 1 }
end
-- A full server refuses what may add. After any removal it lets this pass too.
redis.call('HDEL', lease, '')
redis.call('HSET', lease, 'expires', string.format('%.0f', now_ms() + duration_ms), 'length', duration_ms)
if keep_ms ~= '' then redis.call('PEXPIRE', lease, string.format('%.0f', duration_ms + keep_ms)) end
return { 'OK', tonumber(epoch) }
