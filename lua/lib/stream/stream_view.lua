-- What is known of a stream, in this order.
local function stream_view(info)
  return redis.call(
    'HMGET', info, 'id', 'state', 'type', 'life', 'expires', 'closed', 'closer', 'first', 'last', 'bytes', 'seq',
    'origin', 'forks', 'about'
  )
end
