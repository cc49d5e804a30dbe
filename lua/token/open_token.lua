-- Open a one-time token with its payload, or renew one that is open.
-- KEYS token    hash: state, payload, mark, task, expires, claim, actor, at, decision
-- ARGV payload  bytes
-- ARGV mark     digest of the payload
-- ARGV ttl_ms   int: until it expires
-- ARGV keep_ms  int: how long its trace is kept afterwards
-- Returns
--   {'OK', opened}               0: it was used with this payload before; nothing was done
--   {'TAKEN', by, at, decision}  it was used, with another payload; nothing was written
-- @include now_ms
-- @include token_open
-- @lasting

local opened = { key = token, payload = payload, mark = mark, task = '', ttl_ms = ttl_ms, keep_ms = keep_ms }
return token_open(opened, now_ms()) or { 'OK', 1 }
