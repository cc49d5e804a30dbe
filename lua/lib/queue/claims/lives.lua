-- Let a key live for so long from now at least.
local function lives(key, life_ms)
  if redis.call('PTTL', key) < life_ms then redis.call('PEXPIRE', key, life_ms) end
end
