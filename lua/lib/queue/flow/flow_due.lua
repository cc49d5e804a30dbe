-- Return the first jobs without a key that are due, each with its place. Those that have one, and were put off
-- until now, go where their key takes its turn. Many of one key do not stand in the way of the jobs behind
-- them: more are read until there are `limit` jobs without a key, or so many were moved.
-- @include job_place
-- @include flow_again
local function flow_due(keys, limit, now, life_ms)
  local now_text, due, moved, page = string.format('%.0f', now), {}, 0, limit
  flow_again(keys, now_text)
  while true do
    local found = redis.call('ZRANGE', keys.queue, '-inf', now_text, 'BYSCORE', 'LIMIT', #due / 2, page, 'WITHSCORES')
    for i = 1, #found, 2 do
      local key = redis.call('HGET', keys.owners, 'later:' .. found[i])
      if key then
        redis.call('HDEL', keys.owners, 'later:' .. found[i])
        redis.call('ZREM', keys.queue, found[i])
        job_place(keys, found[i], key, found[i + 1], life_ms)
        moved = moved + 1
      else
        due[#due + 1], due[#due + 2] = found[i], found[i + 1]
      end
    end
    if #found < 2 * page or #due >= 2 * limit or moved >= 256 then return due end
    page = 64
  end
end
