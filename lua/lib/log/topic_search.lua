-- Return the index of the first number greater than `after` in a topic's ascending list.
local function topic_search(topic_rows, after)
  local low, high = 0, redis.call('LLEN', topic_rows)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if tonumber(redis.call('LINDEX', topic_rows, middle)) > after then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end
