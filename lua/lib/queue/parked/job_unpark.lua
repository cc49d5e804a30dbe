-- Take a task's job away from those that wait for a worker with their version: one that was kept for a version
-- of the record before the given one, or any for nil.
local function job_unpark(keys, task, before)
  local id, version = string.match(redis.call('HGET', keys.owners, 'parked:' .. task) or '', '^(.+) (%d+)$')
  if not id or before and tonumber(version) >= before then return end
  local owner = redis.call('HGET', keys.owners, id) or ''
  redis.call('HDEL', keys.owners, 'parked:' .. task)
  if string.sub(owner, 1, 2) ~= 'v:' then return end
  redis.call('HDEL', keys.owners, id)
  redis.call('ZREM', keys.keyed, owner .. '\0' .. id)
end
