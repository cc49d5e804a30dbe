-- Run a command that removes, once per call: what another client writes before a repetition stays.
-- KEYS key          string, or whatever the command takes
-- ARGV verb         of a command whose reply is a number
-- ARGV arguments..  long: that follow the key
-- Returns
--   {'OK', reply}    what the command gave; a long one is run in portions, and this is the sum
-- @once
-- @idempotent

local reply, portion = 0, 1000
for first = arguments_from, math.max(#arguments, arguments_from), portion do
  reply = reply + redis.call(verb, key, unpack(arguments, first, math.min(first + portion - 1, #arguments)))
end
return keep_reply({ 'OK', reply })
