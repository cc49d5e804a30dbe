-- Return the id of the archive that has what a namespace has marked as archived. The first id that is given
-- stays, until another one is accepted.
-- KEYS known    hash: id
-- ARGV id       taken if there is none
-- ARGV instead  flag: taken in place of another one too
-- Returns
--   {'OK', id}  the one that is kept now

local held = redis.call('HGET', known, 'id')
if instead or not held then
  redis.call('HSET', known, 'id', id)
  held = id
end
redis.call('PEXPIRE', known, 34560000000)
return { 'OK', held }
