-- Open a token, or renew an open one. `token` has key, payload, mark (the payload's digest), task,
-- ttl_ms and keep_ms (how long its trace is kept). Returns nil, or the reply for a used one.
local function token_open(token, now)
  local was = redis.call('HMGET', token.key, 'state', 'mark', 'actor', 'at', 'decision')
  if was[1] == 'resolved' then
    if was[2] == token.mark then return { 'OK', 0 } end
    return { 'TAKEN', was[3], tonumber(was[4]), was[5] }
  end
  redis.call('HSET', token.key, 'state', 'open', 'payload', token.payload, 'mark', token.mark,
    'task', token.task, 'expires', string.format('%.0f', now + token.ttl_ms))
  redis.call('PEXPIRE', token.key, string.format('%.0f', token.ttl_ms + token.keep_ms))
  return nil
end
