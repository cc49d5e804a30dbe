-- Keep a call's reply for as long as the call may be repeated, and return it. Each call has a key of
-- its own: however many there are, none makes the server forget another.
local function call_note(call, keep_ms, reply)
  -- A full server refuses what only adds. After any removal it lets this pass too.
  redis.call('DEL', call)
  redis.call('SET', call, cmsgpack.pack(reply), 'PX', keep_ms)
  return reply
end
