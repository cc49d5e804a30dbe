-- Return the reply that this very call got before, nil for a call that comes for the first time.
local function call_noted(call)
  local reply = redis.call('GET', call)
  return reply and cmsgpack.unpack(reply)
end
