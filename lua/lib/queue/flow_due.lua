-- Return the first jobs without a key that are due, each with its place. Those that have one, and were put off
-- until now, go where their key takes its turn; and so does a key whose rate lets it start again.
-- @include job_place
local function flow_due(keys, limit, now, life_ms)
  local now_text, due = string.format('%.0f', now), {}
  for _, key in ipairs(redis.call('ZRANGE', keys.waits, '-inf', now_text, 'BYSCORE', 'LIMIT', 0, 256)) do
    redis.call('ZREM', keys.waits, key)
    flow_turn(keys, key)
  end
  local found = redis.call('ZRANGE', keys.queue, '-inf', now_text, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
  for i = 1, #found, 2 do
    local key = redis.call('HGET', keys.owners, 'later:' .. found[i])
    if key then
      redis.call('HDEL', keys.owners, 'later:' .. found[i])
      redis.call('ZREM', keys.queue, found[i])
      job_place(keys, found[i], key, found[i + 1], life_ms)
    else
      due[#due + 1], due[#due + 2] = found[i], found[i + 1]
    end
  end
  return due
end
