-- Open a one-time token with its payload, or renew one that is open.
-- KEYS[1] token    hash: state, payload, mark, task, expires, claim, by, at, decision
-- ARGV[1] payload  bytes
-- ARGV[2] mark     digest of the payload
-- ARGV[3] ttl_ms   until it expires
-- ARGV[4] keep_ms  how long its trace is kept afterwards
-- Returns
--   {'OK', opened}               0: it was used with this payload before; nothing was done
--   {'TAKEN', by, at, decision}  it was used, with another payload; nothing was written
-- @include now_ms
-- @include token_open
local key = KEYS[1]
local payload, mark, ttl_ms, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local token = { key = key, payload = payload, mark = mark, task = '', ttl_ms = ttl_ms, keep_ms = keep_ms }
return token_open(token, now_ms()) or { 'OK', 1 }
