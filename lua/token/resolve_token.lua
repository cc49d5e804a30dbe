-- Consume a token for one claim. The claim's repeated call gets the same answer.
-- KEYS token     hash: state, payload, expires, claim, actor, at, decision, task, void
-- ARGV claim     id of this consumer's call
-- ARGV actor     who consumes it
-- ARGV decision  JSON
-- ARGV keep_ms   int: how long the answer is kept for repeated and late calls
-- Returns
--   {'OK', payload, task}        this claim has it
--   {'TAKEN', by, at, decision}  another claim has it, or this one with another decision
--   {'EXPIRED'}                  nobody took it in time
--   {'MISSING'}                  no such token, or its trace is gone, or this claim was released
-- @include now_ms
-- @include token_resolve

local use = { claim = claim, actor = actor, decision = decision, keep_ms = keep_ms }
local reply = token_resolve(token, use, now_ms())
return reply
