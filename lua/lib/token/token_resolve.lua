-- Give a token to the first claim and to nobody else; the winner's repeated claim, with the same
-- decision, gets the same answer. `use` has claim, by, decision, keep_ms (how long the answer is
-- kept), late (also when it has expired) and say, which publishes it: first, as a server may refuse that, and the
-- token would be used up. Returns the reply and whether this very call won.
local function token_resolve(key, use, now)
  local was = redis.call('HMGET', key, 'state', 'payload', 'expires', 'claim', 'actor', 'at', 'decision', 'task', 'void')
  -- A claim that was released may come later than its release: its caller has left.
  local void = was[9] and string.find(' ' .. was[9] .. ' ', ' ' .. use.claim .. ' ', 1, true)
  if not was[1] or void then return { 'MISSING' }, false end
  if was[1] == 'resolved' and was[4] == use.claim and was[7] == use.decision then
    return { 'OK', was[2], was[8] }, false
  end
  if was[1] == 'resolved' then return { 'TAKEN', was[5], tonumber(was[6]), was[7] }, false end
  if tonumber(was[3]) <= now and not use.late then return { 'EXPIRED' }, false end
  if use.say then use.say() end
  redis.call('HSET', key, 'state', 'resolved', 'claim', use.claim, 'actor', use.actor,
    'at', string.format('%.0f', now), 'decision', use.decision)
  redis.call('PEXPIRE', key, use.keep_ms)
  return { 'OK', was[2], was[8] }, true
end
