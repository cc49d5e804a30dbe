-- Delete an owner's push configurations of an A2A task, one or all, once per call.
-- KEYS[1] push     hash: owner and name -> number and configuration; '' -> the last number
-- KEYS[2] call     string: this call's reply, if it was here before
-- ARGV[1] keep_ms  how long the reply is kept for a repetition
-- ARGV[2] owner    that the names begin with
-- ARGV[3] name     owner and name of the one, '' for all
-- Returns
--   {'OK', deleted}
-- @include call_noted
-- @include call_note
local push, call = KEYS[1], KEYS[2]
local keep_ms, owner, name = ARGV[1], ARGV[2], ARGV[3]

local done = call_noted(call)
if done then return done end
local deleted = 0
for _, there in ipairs(redis.call('HKEYS', push)) do
  if there ~= '' and string.sub(there, 1, #owner) == owner and (name == '' or name == there) then
    deleted = deleted + redis.call('HDEL', push, there)
  end
end
if redis.call('HLEN', push) == 1 and redis.call('HEXISTS', push, '') == 1 then redis.call('DEL', push) end
return call_note(call, keep_ms, { 'OK', deleted })
