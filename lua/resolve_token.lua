-- Consume a token for one claim. The claim's repeated call gets the same answer.
-- KEYS[1] token    hash: state, payload, expires, claim, by, at, decision, task
-- ARGV[1] claim    id of this consumer's call
-- ARGV[2] by       who consumes it
-- ARGV[3] decision JSON
-- ARGV[4] keep_ms  how long the answer is kept for repeated and late calls
-- Returns
--   {'OK', payload, task}        this claim has it
--   {'TAKEN', by, at, decision}  another claim has it
--   {'EXPIRED'}                  nobody took it in time
--   {'MISSING'}                  no such token, or its trace is gone
-- @include now_ms
-- @include token_resolve
local key = KEYS[1]
local claim, by, decision, keep_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local reply = token_resolve(key, claim, by, decision, keep_ms, now_ms())
return reply
