-- Give a token to the first claim and to nobody else; the winner's repeated claim gets the same
-- answer. Returns the reply and whether this very call won.
local function token_resolve(key, claim, by, decision, keep_ms, now)
  local was = redis.call('HMGET', key, 'state', 'payload', 'expires', 'claim', 'by', 'at', 'decision', 'task')
  if not was[1] then return { 'MISSING' }, false end
  if was[1] == 'resolved' and was[4] == claim then
    return { 'OK', was[2], was[8] }, false
  end
  if was[1] == 'resolved' then return { 'TAKEN', was[5], tonumber(was[6]), was[7] }, false end
  if tonumber(was[3]) <= now then return { 'EXPIRED' }, false end
  redis.call('HSET', key, 'state', 'resolved', 'claim', claim, 'by', by,
    'at', string.format('%.0f', now), 'decision', decision)
  redis.call('PEXPIRE', key, keep_ms)
  return { 'OK', was[2], was[8] }, true
end
