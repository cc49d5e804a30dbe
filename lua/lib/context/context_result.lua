-- Keep a task's result in a context. One that the task had is replaced, in its place.
local function context_result(context, task, result)
  local was = redis.call('HGET', context, '=' .. task)
  local place = was and string.match(was, '^%d+')
    or string.format('%.0f', redis.call('HINCRBY', context, 'places', 1))
  redis.call('HSET', context, '=' .. task, place .. ' ' .. result)
end
