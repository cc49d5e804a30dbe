-- Run a script once per call. Returns the reply that this very call got before, false for a call that
-- comes for the first time; and what keeps its reply for as long as the call may be repeated. Each call
-- has a key of its own: however many there are, none makes the server forget another.
local function once(call, keep_ms)
  local known = redis.call('GET', call)
  local function keep_reply(reply)
    -- A full server refuses what only adds. After any removal it lets this pass too.
    redis.call('DEL', call)
    redis.call('SET', call, cmsgpack.pack(reply), 'PX', keep_ms)
    return reply
  end
  return known and cmsgpack.unpack(known), keep_reply
end
