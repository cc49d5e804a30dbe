-- Set the rate of a name, in place of what its callers give; or take that away. Once
-- per call: what was set before a repetition stays.
-- KEYS settings  hash: name -> rate. It may be absent
-- ARGV name      of the rate
-- ARGV rate      how much in which period: a number and ms; '' takes it away
-- Returns
--   {'OK'}
-- @once
-- @idempotent

if rate == '' then
  redis.call('HDEL', settings, name)
else
  redis.call('HSET', settings, name, rate)
end
redis.call('PEXPIRE', settings, 34560000000)
return keep_reply({ 'OK' })
