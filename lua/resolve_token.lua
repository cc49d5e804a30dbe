-- Consume a token for one claim. The claim's repeated call gets the same answer.
-- KEYS[1] token    hash: state, payload, expires, claim, by, at, decision, task, void
-- ARGV[1] claim    id of this consumer's call
-- ARGV[2] by       who consumes it
-- ARGV[3] decision JSON
-- ARGV[4] keep_ms  how long the answer is kept for repeated and late calls
-- Returns
--   {'OK', payload, task}        this claim has it
--   {'TAKEN', by, at, decision}  another claim has it, or this one with another decision
--   {'EXPIRED'}                  nobody took it in time
--   {'MISSING'}                  no such token, or its trace is gone, or this claim was released
-- @include now_ms
-- @include token_resolve
local key = KEYS[1]
local use = { claim = ARGV[1], by = ARGV[2], decision = ARGV[3], keep_ms = tonumber(ARGV[4]) }

local reply = token_resolve(key, use, now_ms())
return reply
