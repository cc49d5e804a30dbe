-- Move a job out of its line, and let it hold the permits of its key. They live as long as claims do: a permit
-- without its claim would be nobody's to end.
-- @include lives
-- @include key_lines
local function line_claim(keys, life_ms, task, id, place, key)
  local line, above = key_lines(key)
  redis.call('ZREM', keys.keyed, line .. '\0' .. place .. '\0' .. id)
  -- A claim of which an earlier version saw the end may have left what it took.
  redis.call('HDEL', keys.owners, id, 'took:' .. task, 'of:' .. task)
  redis.call('HSET', keys.owners, 'held:' .. task, key)
  redis.call('ZADD', keys.holders, 0, line .. '\0' .. task)
  if above then
    redis.call('ZADD', keys.holders, 0, above .. '\0' .. task)
    redis.call('ZREM', keys.heads, above .. '\0' .. place .. '\0' .. line)
  end
  redis.call('ZADD', keys.turns, redis.call('HINCRBY', keys.flow, 'turn', 1), above or line)
  lives(keys.holders, life_ms)
  -- What waits for longer keeps its key.
  for _, each in ipairs({ keys.owners, keys.turns }) do lives(each, 691200000) end
  redis.call('PEXPIRE', keys.flow, 34560000000)
end
